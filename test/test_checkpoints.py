"""Strict loading of weights: fused parameters, stand-ins, dtypes, errors that list everything, memory."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from oxygen_ros.errors import ConfigError
from oxygen_ros.models import checkpoints
from oxygen_ros.models.checkpoints import LogProgress, Source, allocate, load_strict, require_memory, tensor_names

SOURCES = {
    'qkv.weight': Source(('q', 'k', 'v'), rows=(4, 2, 2)),
    'norm': Source(('w',), add=1.0),
    'embedding.weight': Source(('embed',), instead=('head',)),
}


class Network(nn.Module):
    """Three parameters of one layer each."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(3, 8, bias=False)
        self.norm = nn.Parameter(torch.ones(3), requires_grad=False)
        self.embedding = nn.Embedding(5, 3)


def given() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    shapes = {'q': (4, 3), 'k': (2, 3), 'v': (2, 3), 'w': (3,), 'embed': (5, 3), 'head': (5, 3), 'spare': (7,)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def load(path, tensors, network=None, **options):
    save_file(tensors, path / 'model.safetensors')
    if network is None:
        with torch.device('meta'):
            network = Network()
    load_strict(network, path, SOURCES, **{'unused': ('head', 'spare'), **options})
    return network


def test_parts_are_joined_in_their_order_and_norms_get_their_one(tmp_path):
    tensors = given()
    network = load(tmp_path, tensors)
    assert torch.equal(network.qkv.weight, torch.cat([tensors['q'], tensors['k'], tensors['v']]))
    assert torch.equal(network.norm, tensors['w'] + 1)


@pytest.mark.parametrize(('absent', 'used'), [((), 'embed'), (('head',), 'embed'), (('embed',), 'head')])
def test_the_head_stands_in_for_a_tied_embedding_that_is_not_stored(tmp_path, absent, used):
    tensors = {name: value for name, value in given().items() if name not in absent}
    assert torch.equal(load(tmp_path, tensors).embedding.weight, tensors[used])


def test_every_missing_unknown_and_wrong_tensor_is_in_one_error(tmp_path):
    tensors = {name: value for name, value in given().items() if name not in ('k', 'embed', 'head')}
    tensors |= {'w': torch.zeros(4), 'q': torch.zeros(2, 3), **{f'other{i}': torch.zeros(1) for i in range(7)}}
    with pytest.raises(ConfigError) as error:
        load(tmp_path, tensors)
    text = str(error.value)
    assert '2 missing: k, embed' in text
    assert '7 unknown: other0, other1, other2, other3, other4 and 2 more' in text
    assert '2 of wrong shape: w is [4], not [3], q is [2, 3], not [4, 3]' in text


def test_parts_that_only_fit_in_sum_are_refused(tmp_path):
    tensors = given() | {'q': torch.zeros(2, 3), 'k': torch.zeros(4, 3)}
    with pytest.raises(ConfigError, match='2 of wrong shape'):
        load(tmp_path, tensors)


def test_a_refused_file_leaves_the_network_as_it_was(tmp_path):
    network = Network()
    before = network.qkv.weight.clone()
    with pytest.raises(ConfigError):
        load(tmp_path, {'q': torch.zeros(4, 3)}, network)
    assert torch.equal(network.qkv.weight, before)


def test_each_parameter_gets_its_own_dtype(tmp_path):
    network = load(tmp_path, given(), dtype=lambda name: torch.float32 if 'norm' in name else torch.bfloat16)
    assert {name: parameter.dtype for name, parameter in network.named_parameters()} == {
        'qkv.weight': torch.bfloat16, 'norm': torch.float32, 'embedding.weight': torch.bfloat16}
    assert torch.equal(network.qkv.weight[:4], given()['q'].bfloat16())


def test_the_one_of_a_norm_is_added_before_rounding(tmp_path):
    tensors = given() | {'w': torch.full((3,), 2.0**-9, dtype=torch.bfloat16)}
    assert load(tmp_path, tensors, dtype=lambda name: torch.float32).norm[0].item() == 1 + 2.0**-9


def test_the_file_may_be_mapped_piece_by_piece(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, 'MAPPED', 1)
    network = load(tmp_path, given())
    assert torch.equal(network.qkv.weight, torch.cat([given()[name] for name in 'qkv']))
    assert torch.equal(network.embedding.weight, given()['embed'])


def test_names_may_carry_a_prefix(tmp_path):
    tensors = {f'model.{name}': value for name, value in given().items()}
    assert torch.equal(load(tmp_path, tensors, prefix='model.').norm, given()['w'] + 1)
    assert 'model.q' in tensor_names(tmp_path)
    with pytest.raises(ConfigError, match="1 unknown: q .without 'model.'"):
        load(tmp_path, tensors | {'q': torch.zeros(4, 3)}, prefix='model.')
    with pytest.raises(ConfigError, match='5 missing.*1 unknown: model.q'):
        load(tmp_path, {'model.q': torch.zeros(4, 3)}, prefix='')


def test_progress_counts_every_byte_once(tmp_path):
    calls = []
    load(tmp_path, given(), progress=lambda done, total, seconds: calls.append((done, total)))
    assert [done for done, _ in calls] == [12, 108, 168] and {total for _, total in calls} == {168}


def test_progress_is_said_now_and_then_with_size_and_rate():
    said = []
    progress = LogProgress('loading', said.append)
    for done, seconds in ((1, 0.5), (2, 2.5), (3, 3.0), (4, 3.5)):
        progress(done << 30, 4 << 30, seconds)
    assert said == ['loading: 2.00 of 4.00 GiB (50 %), 0.80 GiB/s', 'loading: 4.00 of 4.00 GiB (100 %), 1.14 GiB/s']
    quick = LogProgress('loading', said.append)
    quick(1, 1, 0.1)
    assert len(said) == 2


@pytest.mark.parametrize('content', [b'', b'no safetensors', None])
def test_a_file_that_is_none_is_named(tmp_path, content):
    if content is not None:
        (tmp_path / 'model.safetensors').write_bytes(content)
    with pytest.raises(ConfigError, match='model.safetensors'):
        load_strict(Network(), tmp_path)


RULES = {'float32': lambda name: torch.float32, 'bfloat16': lambda name: torch.bfloat16}


def test_a_model_that_does_not_fit_is_refused_with_what_would():
    network = Network()  # 42 numbers
    assert require_memory('m', network, RULES, 'float32', 'cpu', budget_bytes=168) == 168
    with pytest.raises(ConfigError, match='float32.*budget: choose dtype bfloat16'):
        require_memory('m', network, RULES, 'float32', 'cpu', budget_bytes=167)
    with pytest.raises(ConfigError, match='at least .* choose another device'):
        require_memory('m', network, RULES, 'bfloat16', 'cpu', budget_bytes=83)


def test_allocating_gives_memory_in_the_dtype_of_the_rule():
    with torch.device('meta'):
        network = Network()
    allocate(network, RULES['bfloat16'], 'cpu')
    assert all(p.device.type == 'cpu' and p.dtype is torch.bfloat16 for p in network.parameters())
