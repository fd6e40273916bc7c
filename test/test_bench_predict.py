"""Predictions: work from sizes, by hand-made numbers and by the parameters of a network; devices; the command."""

from __future__ import annotations

import json

import pytest
import torch
from bench_models import small_model_file

from oxygen_ros import cli
from oxygen_ros.bench.devices import DEVICES, device_of
from oxygen_ros.bench.predict import DEVICE_NAMES, Frame, floors, frame_seconds, stages
from oxygen_ros.bench.sizes import PUBLISHED, sizes_of
from oxygen_ros.bench.work import (
    ActionSizes,
    DecoderSizes,
    ModelSizes,
    VisionSizes,
    Work,
    decode_work,
    denoise_work,
    prefill_work,
    vision_work,
)
from oxygen_ros.models.pi0_network import Pi0Network
from oxygen_ros.models.pi05_config import network_config
from oxygen_ros.models.registry import read_model_file

# Small enough to count by hand.
SMALL = ModelSizes(
    'small', VisionSizes(layers=2, width=4, mlp=8, patches=3, pixels=5, outer=24),
    DecoderSizes(layers=2, width=6, mlp=10, heads=4, kv_heads=2, head_dim=2, vocabulary=11),
    ActionSizes(step_weights=100, tokens=5, attention=16, kv_numbers=8, steps=3), cameras=2, image_tokens=3, prompt=4,
    source='test')


def test_work_of_the_vision_tower_is_counted_by_hand():
    # A layer: 4 * 4 * 4 for attention, 2 * 4 * 8 for the MLP. Two pictures of 3 patches.
    weights = 2 * (64 + 64) + 5 * 4 + 24
    assert vision_work(SMALL, 2, 2) == Work(2 * weights, 2 * 6 * weights + 4 * 6 * 3 * 4 * 2)
    assert vision_work(SMALL, 0, 2) == Work(0, 0)


def test_work_of_a_prefill_leaves_out_what_the_last_layer_need_not_do():
    layer = 6 * 2 * (4 + 4 + 2 + 2) + 3 * 6 * 10
    used = layer + 2 * 6 * 2 * 2
    assert SMALL.prefix == 10
    assert prefill_work(SMALL, 10, 4) == Work(4 * (used + 10 * 16), 2 * 10 * used + 4 * 100 * 8)


def test_work_of_denoising_reads_weights_and_prefix_once_per_step():
    assert denoise_work(SMALL, 10, 3, 2) == Work(3 * 2 * (100 + 80), 3 * (2 * 5 * 100 + 4 * 5 * 15 * 16))


def test_decoding_in_a_batch_reads_the_weights_once():
    weights = 2 * (6 * 2 * 12 + 180) + 66
    one, six = (decode_work(SMALL, 10, batch, batch, 7, 2) for batch in (1, 6))
    assert one.bytes == 2 * (weights + 17 * 16) and one.flops == 2 * weights + 4 * 17 * 8 * 2
    assert six.bytes == 2 * (weights + 6 * 17 * 16) and six.flops == 6 * one.flops
    # On one frame its K and V are read once.
    assert decode_work(SMALL, 10, 6, 1, 7, 2).bytes == 2 * (weights + (10 + 6 * 7) * 16)


def test_time_is_that_of_the_narrower_way():
    assert Work(bytes=100, flops=10).seconds(flops=10, bandwidth=50) == 2
    assert Work(bytes=100, flops=50).seconds(flops=10, bandwidth=50) == 5


def test_frames_of_the_modes_are_summed_by_hand():
    times = {'vision': 1.0, 'prefill': 2.0, 'denoise': 4.0, 'decode_1': 0.1, 'decode_batch': 0.5}
    assert frame_seconds(times, Frame(30, 5)) == pytest.approx(
        {'isolated': 6 + 4 + 2.9, 'shared_kv': 3 + 4 + 2.9, 'continuous_batching': 3 + 4 + 2.5})
    assert Frame(30, 5).batch == 6 and Frame(3, 5).batch == 1


@pytest.mark.parametrize('name', ['small', 'bench_m', 'pi05_base'])
def test_weights_are_those_of_the_network_but_for_norms_and_biases(name, tmp_path):
    name = str(small_model_file(tmp_path)) if name == 'small' else name
    with torch.device('meta'):
        network = Pi0Network(network_config(read_model_file(name).content))
    counted = sum(p.numel() for key, p in network.named_parameters()
                  if p.ndim >= 2 and not key.endswith('position_embedding'))
    assert sizes_of(name).weights == counted


def test_published_models_have_the_parameters_that_are_published():
    assert PUBLISHED['xiaomi_robotics_0']().weights == pytest.approx(4.7e9, rel=0.01)
    starvla = PUBLISHED['starvla_pi_v3']()
    action = starvla.action
    assert action.step_weights + action.frame_weights + action.fixed_weights == pytest.approx(
        538_678_305 + 94_593_024, rel=0.02)
    assert starvla.weights - 633e6 == pytest.approx(4_437_815_808, rel=0.01)


def test_faster_devices_are_predicted_faster_and_batching_pays_on_all(capsys):
    work = stages(sizes_of('pi05_base'), Frame(), 2)
    totals = {name: frame_seconds({stage: w.seconds(device.flops, device.bandwidth) for stage, w in work.items()},
                                  Frame()) for name, device in DEVICES.items()}
    assert totals['h200']['isolated'] < totals['rtx4090']['isolated'] < totals['orin']['isolated']
    for modes in totals.values():
        assert modes['continuous_batching'] < 0.4 * modes['isolated'] and modes['shared_kv'] < modes['isolated']


def test_measured_frame_is_compared_with_its_floor():
    case = {'workload': {'text_length': 4, 'tokens_per_frame': 2, 'denoise_steps': 3}, 'cameras': 2,
            'prefix_tokens': 10, 'modes': {'continuous_batching': {
                'split_wall': {'prefill': 50.0, 'denoise': 4.0, 'decode': 8.0}, 'wall': {'p50': 70.0}}}}
    result = floors(SMALL, case, flops=1e9, bandwidth=1000.0, size=2)
    least = {name: work.bytes / 1000 for name, work in stages(SMALL, Frame(4, 2), 2).items()}
    assert result['denoise'] == pytest.approx({'measured': 4.0, 'floor': 1.08, 'of_floor': 4 / 1.08})
    assert result['prefill']['floor'] == pytest.approx(least['vision'] + least['prefill'])
    assert result['decode']['floor'] == pytest.approx(2 * least['decode_batch'])
    assert result['frame']['of_floor'] == pytest.approx(70 / sum(result[s]['floor'] for s in
                                                                 ('prefill', 'denoise', 'decode')))
    assert floors(SMALL, {**case, 'modes': {}}, 1e9, 1e3, 2) == {}


def test_devices_say_where_their_figures_come_from():
    assert set(DEVICE_NAMES) == {*DEVICES, 'cpu'}
    assert all(device.source and device.bandwidth < device.flops for device in DEVICES.values())
    here = device_of('cpu', torch.float32, 1e6)
    assert 'measured here' in here.source and here.flops > 0 and here.bandwidth > 0


def test_prediction_prints_its_assumptions_and_is_written(tmp_path, capsys):
    file = tmp_path / 'prediction.json'
    assert cli.main(['bench', 'predict', '--device', 'thor', 'h200', '--denoise-steps', '5', '--json', str(file)]) == 0
    output = capsys.readouterr().out
    assert 'PREDICTION' in output and 'data sheet' in output and '5 flow steps' in output
    result = json.loads(file.read_text())
    assert result['schema'] == 'oxygen_ros.predict/1' and list(result['devices']) == ['thor', 'h200']
    assert result['devices']['thor']['bound_by']['decode_1'] == 'memory'
    assert cli.main(['bench', 'predict', '--device', 'thor', '--dtype', 'float32']) == 2
    assert cli.main(['bench', 'predict', '--device', 'cpu', '--model', 'xiaomi_robotics_0.yaml']) == 2
