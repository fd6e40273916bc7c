"""
`oxygen_ros bench predict`: the least time that a device can need for a frame, from bytes and operations alone.

A measured time can be judged against it: what is above the floor is launches, copies, and kernels that do not reach the
peak. Nothing can be below.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from oxygen_ros.bench.work import ModelSizes, Work, decode_work, denoise_work, prefill_work, vision_work

DEVICE_NAMES = ('rtx4090', 'thor', 'orin', 'h200', 'rtx5090', 'a100', 'l40s', 'h100', 'cpu')
MODELS = ('pi05_base', 'xiaomi_robotics_0', 'starvla_pi_v3')
SCHEMA = 'oxygen_ros.predict/1'


@dataclass(frozen=True)
class Frame:
    """
    What is done per frame: one action, one text of `text_length` tokens; with continuous batching `tokens_per_frame`
    decode steps for all texts that run.
    """

    text_length: int = 30
    tokens_per_frame: int = 5

    @property
    def batch(self) -> float:
        """Texts that run at the same time with continuous batching, on average."""
        return max(1.0, self.text_length / self.tokens_per_frame)


def stages(model: ModelSizes, frame: Frame, size: int) -> dict[str, Work]:
    """
    Return the work of each stage.

    :param size: bytes of a number.
    """
    middle = frame.text_length / 2
    return {'vision': vision_work(model, model.cameras, size),
            'prefill': prefill_work(model, model.prefix, size),
            'denoise': denoise_work(model, model.prefix, model.action.steps, size),
            'decode_1': decode_work(model, model.prefix, 1, 1, middle, size),
            'decode_batch': decode_work(model, model.prefix, frame.batch, frame.batch, middle, size)}


def frame_seconds(times: Mapping[str, float], frame: Frame) -> dict[str, float]:
    """Return the least time of a frame in each mode, from the times of its stages."""
    prefill = times['vision'] + times['prefill']
    # The first token of a text comes with its prefill.
    text = (frame.text_length - 1) * times['decode_1']
    steps = min(frame.tokens_per_frame, frame.text_length - 1)
    return {'isolated': 2 * prefill + times['denoise'] + text,
            'shared_kv': prefill + times['denoise'] + text,
            'continuous_batching': prefill + times['denoise'] + steps * times['decode_batch']}


def floors(model: ModelSizes, case: Mapping, flops: float, bandwidth: float, size: int) -> dict[str, dict[str, float]]:
    """
    Return for the stages of a measured frame with continuous batching what they took and the least they can.

    :param case: of a result of `oxygen_ros bench` with this model. :param flops, bandwidth: of the device.
    :param size: bytes of a number.
    """
    workload, mode = case['workload'], case['modes'].get('continuous_batching')
    if mode is None:
        return {}
    pictures = case['cameras'] * model.image_tokens
    model = replace(model, cameras=case['cameras'], prompt=case['prefix_tokens'] - pictures,
                    action=replace(model.action, steps=workload['denoise_steps']))
    frame = Frame(workload['text_length'], workload['tokens_per_frame'])
    least = {name: work.seconds(flops, bandwidth) for name, work in stages(model, frame, size).items()}
    steps = min(frame.tokens_per_frame, frame.text_length - 1)
    wanted = {'prefill': least['vision'] + least['prefill'], 'denoise': least['denoise'],
              'decode': steps * least['decode_batch']}
    # On a processor CPU time is what others on the machine do not prolong.
    taken = mode['split_cpu' if case.get('on_cpu') else 'split_wall']
    taken = {**taken, 'frame': mode['cpu' if case.get('on_cpu') else 'wall']['p50']}
    wanted['frame'] = sum(wanted.values())
    return {stage: {'measured': taken[stage], 'floor': seconds, 'of_floor': taken[stage] / seconds}
            for stage, seconds in wanted.items()}


def floor_lines(figures: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return what `floors` gives in words."""
    return [f'{stage}: measured {1e3 * f["measured"]:.2f} ms, {f["of_floor"]:.2f} times its floor of '
            f'{1e3 * f["floor"]:.2f} ms' for stage, f in figures.items()]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `oxygen_ros bench predict`."""
    parser.add_argument('--device', nargs='+', default=list(DEVICE_NAMES[:4]), choices=DEVICE_NAMES, metavar='DEVICE',
                        help=f'{", ".join(DEVICE_NAMES)}; cpu is this machine, measured just now (default: '
                             f'{" ".join(DEVICE_NAMES[:4])})')
    parser.add_argument('--model', default=MODELS[0], help=f'{", ".join(MODELS)}, or a model file with sizes (default: '
                                                           f'{MODELS[0]})')
    parser.add_argument('--dtype', choices=('float32', 'bfloat16'), default='bfloat16', help='of weights and KV')
    parser.add_argument('--text-length', type=int, default=30, metavar='N', help='tokens of a text (default: 30)')
    parser.add_argument('--tokens-per-frame', type=int, default=5, metavar='K',
                        help='decode steps per frame with continuous batching (default: 5)')
    parser.add_argument('--denoise-steps', type=int, metavar='S', help="flow-matching steps (default: the model's)")
    parser.add_argument('--prompt-tokens', type=int, metavar='N', help='of the prompt besides pictures')
    parser.add_argument('--cameras', type=int, metavar='N', help="that give pictures (default: the model's)")
    parser.add_argument('--threads', type=int, default=0, metavar='T', help='of torch, for the device cpu')
    parser.add_argument('--measured', type=Path, metavar='FILE',
                        help='result of `oxygen_ros bench` with this model, dtype and device: says how far each stage '
                             'is from its floor')
    parser.add_argument('--json', type=Path, metavar='FILE', help='write the prediction to a file')


def main(arguments: argparse.Namespace) -> int:
    """Predict, print and write."""
    import torch

    from oxygen_ros.bench.devices import MEASURED, device_of
    from oxygen_ros.bench.main import check_writable
    from oxygen_ros.bench.sizes import sizes_of
    from oxygen_ros.models.registry import DTYPES

    if arguments.json:
        check_writable(arguments.json)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    model = _changed(sizes_of(arguments.model), arguments)
    dtype, frame = DTYPES[arguments.dtype], Frame(arguments.text_length, arguments.tokens_per_frame)
    work = stages(model, frame, dtype.itemsize)
    devices = {name: device_of(name, dtype, model.weights * dtype.itemsize) for name in dict.fromkeys(arguments.device)}
    result = {'schema': SCHEMA, 'model': asdict(model), 'prefix_tokens': model.prefix,
              'weights_bytes': model.weights * dtype.itemsize, 'dtype': arguments.dtype, 'workload': asdict(frame),
              'stages': {name: asdict(stage) for name, stage in work.items()}, 'devices': {}}
    for name, device in devices.items():
        if arguments.dtype != 'bfloat16' and name != MEASURED:
            raise _wrong_dtype(arguments.dtype, name)
        times = {stage: w.seconds(device.flops, device.bandwidth) for stage, w in work.items()}
        result['devices'][name] = {
            **asdict(device), 'stage_seconds': times,
            'bound_by': {stage: 'memory' if w.bytes / device.bandwidth > w.flops / device.flops else 'operations'
                         for stage, w in work.items()},
            'frame_seconds': frame_seconds(times, frame),
            'fits': device.memory == 0 or model.weights * dtype.itemsize < device.memory}
    print(report(result))
    if arguments.measured:
        cases = _cases(arguments.measured)
        sizes = sizes_of(arguments.model)
        for name, device in devices.items():
            result['devices'][name]['measured'] = [
                floors(sizes, case, device.flops, device.bandwidth, dtype.itemsize) for case in cases]
            for figures in result['devices'][name]['measured']:
                print(f'{name}, {arguments.measured}:', *floor_lines(figures), sep='\n  ')
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + '\n', encoding='utf-8')
    return 0


def report(result: dict) -> str:
    """Return a prediction as text: assumptions, stages, frames by mode."""
    from oxygen_ros.bench.table import rows

    model, frame = result['model'], Frame(**result['workload'])
    devices = result['devices']
    lines = [f'{model["name"]}: {result["weights_bytes"] / 1e9:.2f} GB of weights in {result["dtype"]} '
             f'({model["source"]})',
             f'prefix of {result["prefix_tokens"]} tokens ({model["cameras"]} pictures of {model["image_tokens"]}, '
             f'prompt {model["prompt"]}), {model["action"]["steps"]} flow steps, texts of {frame.text_length} tokens, '
             f'{frame.tokens_per_frame} decode steps per frame, {frame.batch:g} texts in a batch, each on a frame of '
             'its own',
             'PREDICTION, a floor: every weight and all K and V of a call are read once at full bandwidth, or all '
             'operations done at peak, whichever is longer; no launches, no copies, no waiting.']
    for name, device in devices.items():
        lines.append(f'{name}: {device["name"]}, {device["flops"] / 1e12:.3g} TFLOPS, {device["bandwidth"] / 1e9:.4g} '
                     f'GB/s ({device["source"]})' + ('' if device['fits'] else ' -- THE WEIGHTS DO NOT FIT'))
    table = [(stage, [f'{w["bytes"] / 1e6:.0f}', f'{w["flops"] / 1e9:.1f}',
                      *(f'{1e3 * d["stage_seconds"][stage]:.2f} {d["bound_by"][stage][0]}' for d in devices.values())])
             for stage, w in result['stages'].items()]
    lines += ['', rows('stage', ['MB', 'GFLOP', *(f'{name}, ms' for name in devices)], table),
              '(m: bound by memory, o: by operations)', '']
    modes = next(iter(devices.values()))['frame_seconds']
    table = []
    for mode in modes:
        table += [(mode, [f'{1e3 * d["frame_seconds"][mode]:.1f} ms' for d in devices.values()]),
                  ('  frames per s', [f'{1 / d["frame_seconds"][mode]:.1f}' for d in devices.values()]),
                  ('  text tokens per s', [f'{frame.text_length / d["frame_seconds"][mode]:.0f}'
                                           for d in devices.values()]),
                  ('  of isolated', [f'{d["frame_seconds"][mode] / d["frame_seconds"]["isolated"]:.3f}'
                                     for d in devices.values()])]
    return '\n'.join([*lines, rows('frame', list(devices), table)])


def _cases(path: Path) -> list[dict]:
    from oxygen_ros.errors import ConfigError

    try:
        return json.loads(path.read_text(encoding='utf-8'))['cases']
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f'{str(path)!r} is no result of `oxygen_ros bench`: {error}') from None


def _changed(model: ModelSizes, arguments: argparse.Namespace) -> ModelSizes:
    """Return the sizes with what the command line sets."""
    if arguments.denoise_steps is not None:
        model = replace(model, action=replace(model.action, steps=arguments.denoise_steps))
    if arguments.prompt_tokens is not None:
        model = replace(model, prompt=arguments.prompt_tokens)
    return model if arguments.cameras is None else replace(model, cameras=arguments.cameras)


def _wrong_dtype(dtype: str, device: str) -> Exception:
    from oxygen_ros.errors import ConfigError

    return ConfigError(f'the peak of device {device!r} is known for bfloat16 only, not for {dtype}: leave --dtype '
                       'away, or use --device cpu')
