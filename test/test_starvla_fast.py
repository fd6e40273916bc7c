"""QwenFAST: action tokens on a branch of their own, with a small tokenizer made here."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
import yaml
from safetensors.torch import load_file, save_file

from oxygen_ros.engine.config import EngineConfig
from oxygen_ros.engine.engine import Engine
from oxygen_ros.engine.kv_cache import UnifiedKVCache
from oxygen_ros.engine.requests import ActionChunk, SamplingParams, TextRequest
from oxygen_ros.errors import ConfigError
from oxygen_ros.models.interface import PolicyInput
from oxygen_ros.models.registry import LoadOptions, load_model, read_model_file
from oxygen_ros.models.starvla_fast import FastTokenizer, cosines
from oxygen_ros.observation import Observation

CASE = Path(__file__).parent / 'data' / 'golden' / 'starvla' / 'qwengr00t_b'
LEAST, SCALE = -3, 10.0
PIECES = [chr(number) for number in range(9)] + [chr(3) * 2, chr(3) * 4, chr(3) * 8, chr(4) + chr(3)]
FIRST = 307  # id of the language model for action token 0: behind its other added tokens
HORIZON, ACTIONS = 8, 7


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(before)


def write_fast(folder):
    """Write a FAST tokenizer whose pieces are coefficients from -3 to 5, and some rows of zeros."""
    folder.mkdir()
    pieces = {piece: number for number, piece in enumerate(PIECES)}
    zero = chr(3)
    model = tokenizers.models.BPE(pieces, [(zero, zero), (zero * 2, zero * 2), (zero * 4, zero * 4), (chr(4), zero)])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.decoder = tokenizers.decoders.Fuse()
    tokenizer.save(str(folder / 'tokenizer.json'))
    (folder / 'processor_config.json').write_text(json.dumps({'scale': SCALE, 'min_token': LEAST, 'vocab_size': 13}))
    return tokenizer


def encode(tokenizer, actions):
    coefficients = np.rint(cosines(len(actions)) @ actions * SCALE).astype(int)
    return tokenizer.encode(''.join(chr(number - LEAST) for number in coefficients.ravel())).ids


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory):
    """Return a checkpoint of QwenFAST, made from the language model of a golden case."""
    folder = Path(shutil.copytree(CASE, tmp_path_factory.mktemp('fast') / 'case'))
    config = yaml.safe_load((folder / 'config.yaml').read_text())
    config['framework']['name'] = 'QwenFast'
    config['framework']['action_model'] = {'action_dim': ACTIONS, 'future_action_window_size': HORIZON - 1}
    config['datasets']['vla_data'].pop('obs_image_size')  # QwenFAST does not resize
    (folder / 'config.yaml').write_text(yaml.safe_dump(config))
    [path] = (folder / 'checkpoints').iterdir()
    save_file({name: tensor for name, tensor in load_file(path).items() if name.startswith('qwen_vl')}, path)
    words = folder / 'base_vlm' / 'Qwen3-VL-tiny' / 'tokenizer.json'
    tokenizer = tokenizers.Tokenizer.from_file(str(words))
    tokenizer.add_special_tokens([f'<robot_action_{number}>' for number in range(len(PIECES))])
    assert tokenizer.token_to_id('<robot_action_0>') == FIRST
    tokenizer.save(str(words))
    write_fast(folder / 'fast')
    return folder


@pytest.fixture(scope='module')
def fast(checkpoint):
    return model(checkpoint)


def model(checkpoint, **changes):
    file = read_model_file('starvla_libero')
    content = {**file.content, 'prompt_tokens': 256, 'cameras': ['agentview'], 'action_tokens': 12, 'binary': [],
               'client_image_size': None, 'text_head_trained': True, **changes}
    return load_model(replace(file, content=content), LoadOptions(checkpoint))


def observed(row, number=1):
    with np.load(CASE / 'inputs.npz') as inputs:
        return PolicyInput(Observation(number, number, {'agentview': inputs[f'image_{row}_0']}))


def prefilled(fast, row=0):
    cache = UnifiedKVCache(fast.spec.cache_spec(2, 1, 64))
    fast.prefill(observed(row), json.loads((CASE / 'case.json').read_text())['lang'][row], cache,
                 cache.acquire_frame(1))
    return cache


@pytest.mark.parametrize('row', [0, 1])
def test_action_tokens_are_what_the_language_model_says_next(fast, row):
    cache = prefilled(fast, row)
    with np.load(CASE / 'expected.npz') as expected:
        assert fast.head.tokens(cache, 0) == expected['text_ids'][row].tolist()  # as long as action_tokens allows
    cache.check_integrity({0: 1})


def say(fast, monkeypatch, ids):
    """Have the language model say these ids, whatever it is asked."""
    script = iter([*ids, fast.tokenizer.control('<|im_end|>')])

    def next_logits():
        return torch.nn.functional.one_hot(torch.tensor(next(script)), fast.spec.vocabulary).float()

    fed = []

    def extend(cache, slots, tokens):
        fed.extend(tokens)
        cache.advance_branch(slots[0], 1)
        return next_logits()[None]

    monkeypatch.setattr(fast.network.decoder, 'logits', lambda hidden: next_logits())
    monkeypatch.setattr(fast.network.decoder, 'extend', extend)
    return fed


def test_tokens_become_the_actions_that_they_were_made_from(fast, monkeypatch, tmp_path):
    wanted = cosines(HORIZON).T @ (np.random.default_rng(0).integers(-3, 6, (HORIZON, ACTIONS)) / SCALE)
    tokens = encode(write_fast(tmp_path / 'fast'), wanted)
    monkeypatch.setattr(fast.head, 'longest', 100)
    fed = say(fast, monkeypatch, [5, *(FIRST + token for token in tokens), 7])  # other words around them do not count
    cache = prefilled(fast)
    made = fast.denoise(cache, 0, torch.zeros(HORIZON, ACTIONS), 1)
    assert np.allclose(made.numpy(), wanted, atol=1e-6)
    assert [token for [token] in fed] == [5, *(FIRST + token for token in tokens), 7]
    cache.check_integrity({0: 1})


def test_tokens_that_are_no_chunk_give_no_actions_at_all(fast, monkeypatch, caplog):
    say(fast, monkeypatch, [FIRST + 1, FIRST + 2])
    assert fast.denoise(prefilled(fast), 0, torch.zeros(HORIZON, ACTIONS), 1).isnan().all()
    assert '2 coefficients for 8 actions of 7 numbers' in caplog.text


def test_logits_that_are_not_finite_end_the_chunk_and_leave_nothing_behind(fast, monkeypatch):
    cache = prefilled(fast)
    monkeypatch.setattr(fast.network.decoder, 'logits', lambda hidden: torch.full((320,), torch.nan))
    cache.branch_k.fill_(torch.nan)
    assert fast.head.tokens(cache, 0) == []
    assert cache.branch_k[:, 0].eq(0).all()
    cache.check_integrity({0: 1})


def test_actions_have_a_branch_though_texts_take_all_others(fast):
    events = []
    engine = Engine(fast, EngineConfig(max_branches=2, branch_tokens=64), events.append, lambda: 0.0, lambda: 1)
    assert engine.cache.spec.branches == 3
    engine.observe(observed(0))
    for number in (1, 2, 3, 4):
        engine.submit(TextRequest(number, 'speech', '', SamplingParams(20), priority=0, queue_limit=8))
    running = set()
    while not running or engine._texts.running:
        engine.run_cycle(lambda: True)
        running.add(len(engine._texts.running))
        if len(engine._texts.running) == 2 and not any(isinstance(event, ActionChunk) for event in events):
            engine.request_action(0.0)
            engine.run_cycle(lambda: True)
            engine.cancel_action()
    assert max(running) == 2
    assert sum(isinstance(event, ActionChunk) for event in events) == 1
    engine.check_integrity()


def test_tokenizers_that_do_not_fit_are_refused(checkpoint, tmp_path):
    with pytest.raises(ConfigError, match='FAST tokenizer'):
        model(checkpoint, fast_tokenizer=str(tmp_path))
    write_fast(tmp_path / 'fast')
    (tmp_path / 'fast' / 'processor_config.json').write_text('{"scale": 10}')
    with pytest.raises(ConfigError, match="KeyError.'min_token'"):
        model(checkpoint, fast_tokenizer=str(tmp_path / 'fast'))
    with pytest.raises(ConfigError, match='takes no states'):
        model(checkpoint, state='raw')
    with pytest.raises(ConfigError, match='no token <robot_action_0>'):
        model(checkpoint, base_vlm=str(CASE / 'base_vlm' / 'Qwen3-VL-tiny'))


def test_a_token_beyond_the_tokenizer_is_an_error(tmp_path):
    write_fast(tmp_path / 'fast')
    with pytest.raises(ValueError, match='beyond the 13'):
        FastTokenizer(tmp_path / 'fast').decode([13], HORIZON, ACTIONS)


def test_the_transform_is_orthonormal_and_its_first_row_the_mean():
    matrix = cosines(5)
    assert np.allclose(matrix @ matrix.T, np.eye(5)) and np.allclose(matrix[0], 5 ** -0.5)
