"""Packed weights: the same results as unpacked ones, and never a second copy of the weights."""

import pytest
import torch
from small_policy import policy_input, small_config
from torch import nn

from oxygen_ros.engine.kv_cache import UnifiedKVCache
from oxygen_ros.models import packing
from oxygen_ros.models.initialise import initialise
from oxygen_ros.models.layers import Activation, GatedLinear, Linear
from oxygen_ros.models.packing import PackedGatedLinear, PackedHead, PackedLinear, Packing, choose, pack
from oxygen_ros.models.registry import LoadOptions
from oxygen_ros.models.tiny import TinyModel

needs_onednn = pytest.mark.skipif(packing._linear is None, reason='this torch has no oneDNN')


@pytest.fixture(autouse=True)
def everything_is_large_enough(monkeypatch):
    monkeypatch.setattr(packing, 'LEAST_NUMBERS', 1)


def new_model(dtype=torch.float32):
    return TinyModel(small_config(), LoadOptions(dtype=dtype))


@torch.inference_mode()
def results(model):
    """Return keys of the prefix, actions and logits of one frame."""
    cache = UnifiedKVCache(model.spec.cache_spec(2, 3, 32))
    frame = cache.acquire_frame(0)
    model.prefill(policy_input(1), 'pick the cup', cache, frame)
    noise = torch.randn((model.spec.horizon, model.spec.action_dim), generator=torch.Generator().manual_seed(1))
    actions = model.denoise(cache, frame, noise, 3)
    branches = [cache.open_branch(frame) for _ in range(3)]
    model.extend(cache, branches, [[300, 301], [302], [303, 304, 305]])
    logits = model.extend(cache, branches, [[310], [311], [312]])
    return cache.frame_k[:, frame].float(), actions, logits, model.prefix_logits(cache, frame)


@needs_onednn
@pytest.mark.parametrize('form', [Packing.COLUMNS, Packing.ONEDNN])
def test_packed_network_gives_what_it_gave_before(form):
    model = new_model()
    before = results(model)
    assert pack(model.network, form) is form
    for ours, expected in zip(results(model), before):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


@needs_onednn
def test_packed_bfloat16_is_as_near_to_float32_as_unpacked():
    exact, model = results(new_model()), new_model(torch.bfloat16)
    before = results(model)
    pack(model.network, Packing.ONEDNN)
    for ours, unpacked, expected in zip(results(model), before, exact):
        assert (ours - expected).norm() < 1.5 * (unpacked - expected).norm() + 1e-3 * expected.norm()


@needs_onednn
def test_plain_layers_and_packed_ones_do_the_same():
    x, residual = torch.randn(5, 24), torch.randn(5, 40)
    with torch.inference_mode():
        for linear in (Linear(24, 40), Linear(24, 40, bias=False)):
            packed = PackedLinear(linear)
            torch.testing.assert_close(packed(x), linear(x))
            torch.testing.assert_close(packed.add_to(residual, x), residual + linear(x))
            torch.testing.assert_close(packed.activated(x), nn.functional.gelu(linear(x), approximate='tanh'))
        for activation, function in ((Activation.GELU, lambda gate: nn.functional.gelu(gate, approximate='tanh')),
                                     (Activation.SILU, nn.functional.silu)):
            gated = GatedLinear(24, 40, activation)
            gate, up = (x @ gated.weight.T).chunk(2, -1)
            torch.testing.assert_close(gated(x), function(gate) * up)
            torch.testing.assert_close(PackedGatedLinear(gated)(x), function(gate) * up)


@needs_onednn
def test_weights_are_not_kept_twice():
    model = new_model()
    layers = model.network.decoder.layers
    pack(model.network, Packing.ONEDNN)
    assert all(isinstance(layer.gate_up, PackedGatedLinear) and isinstance(layer.down, PackedLinear)
               for layer in layers)
    left = {name for name, parameter in model.network.named_parameters() if parameter.ndim == 2}
    assert {name for name in left if not name.startswith('expert.')} == {'decoder.embedding.weight',
                                                                         'vision.position_embedding'}
    assert not any(part in name for name in left for part in ('qkv', 'gate_up', '.out.', 'down'))


def test_columns_change_no_parameter():
    model = new_model()
    before = {name: parameter.clone() for name, parameter in model.network.named_parameters()}
    for _ in range(2):
        assert pack(model.network, Packing.COLUMNS) is Packing.COLUMNS
    after = dict(model.network.named_parameters())
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert model.network.decoder.layers[0].down.weight.stride() == (1, 32)


@needs_onednn
def test_head_is_copied_only_if_that_is_cheap(monkeypatch):
    model = new_model()
    pack(model.network, Packing.COLUMNS)
    assert isinstance(model.network.decoder.head, PackedHead)
    monkeypatch.setattr(packing, 'MOST_HEAD_BYTES', 10)
    model = new_model()
    pack(model.network, Packing.COLUMNS)
    assert not isinstance(model.network.decoder.head, PackedHead)


@pytest.mark.parametrize('rows', [3, 8192])
def test_logits_of_bfloat16_weights_are_float32(monkeypatch, rows):
    """Two tokens whose logits differ by less than bfloat16 can tell are not equal."""
    monkeypatch.setattr('oxygen_ros.models.gemma.HEAD_ROWS', rows)
    model = new_model(torch.bfloat16)
    decoder = model.network.decoder
    hidden = torch.randn(4, decoder.config.width, generator=torch.Generator().manual_seed(2)).bfloat16()
    with torch.inference_mode():
        logits = decoder.logits(hidden)
        normed = hidden.double() * (hidden.double().square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        exact = (normed * decoder.norm.double()) @ decoder.embedding.weight.double().T
        torch.testing.assert_close(logits.double(), exact, rtol=1e-5, atol=1e-5)
        assert not torch.equal(logits, logits.bfloat16().float())
        if packing._linear is not None:
            pack(model.network, Packing.ONEDNN)
            torch.testing.assert_close(decoder.logits(hidden).double(), exact, rtol=1e-5, atol=1e-5)


def test_choice_is_a_rule_of_device_and_dtype(monkeypatch):
    assert choose(torch.float32, 'cpu') is Packing.COLUMNS
    assert choose(torch.bfloat16, 'cuda:0') is choose(torch.float32, 'cuda') is Packing.PLAIN
    monkeypatch.setattr(packing, '_linear', None)
    assert choose(torch.bfloat16, 'cpu') is Packing.PLAIN


def test_small_and_foreign_layers_are_left_as_they_are(monkeypatch):
    class Foreign(nn.Linear):
        pass

    monkeypatch.setattr(packing, 'LEAST_NUMBERS', 100)
    network = nn.ModuleDict({'small': nn.Linear(9, 9), 'foreign': Foreign(20, 20), 'large': nn.Linear(20, 20)})
    initialise(network, 0)
    pack(network, Packing.COLUMNS)
    assert [layer.weight.is_contiguous() for layer in network.values()] == [True, True, False]
