"""Choosing tokens: greedy, temperature, nucleus; one generator per request; numbers that break a softmax."""

import math

import pytest
import torch

from oxygen_ros.engine.requests import SamplingParams, TextRequest
from oxygen_ros.engine.sampling import Sampler, choose_tokens


def logits_of(*probabilities):
    return torch.tensor(probabilities).log()[None]


def frequencies(params, logits, count=4000):
    sampler = Sampler(params)
    tokens = torch.tensor([sampler.choose(logits[0]) for _ in range(count)])
    return (torch.bincount(tokens, minlength=logits.shape[1]) / count).tolist()


def test_temperature_zero_takes_the_most_likely():
    assert choose_tokens([Sampler(SamplingParams())], logits_of(0.2, 0.5, 0.3), None) == [1]


def test_sampling_follows_the_probabilities():
    found = frequencies(SamplingParams(temperature=1.0), logits_of(0.6, 0.1, 0.3))
    assert found == pytest.approx([0.6, 0.1, 0.3], abs=0.03)


def test_temperature_sharpens():
    found = frequencies(SamplingParams(temperature=0.5), logits_of(0.6, 0.1, 0.3))
    assert found == pytest.approx([0.36 / 0.46, 0.01 / 0.46, 0.09 / 0.46], abs=0.03)


def test_nucleus_keeps_tokens_until_their_sum_reaches_top_p():
    found = frequencies(SamplingParams(temperature=1.0, top_p=0.75), logits_of(0.3, 0.1, 0.5, 0.1))
    assert found == pytest.approx([3 / 8, 0, 5 / 8, 0], abs=0.03)


def test_nucleus_always_keeps_the_most_likely():
    assert frequencies(SamplingParams(temperature=1.0, top_p=1e-9), logits_of(0.3, 0.1, 0.6), 50) == [0, 0, 1]


def test_suppressed_tokens_are_never_chosen():
    suppressed = torch.tensor([1])
    for params in (SamplingParams(), SamplingParams(temperature=2.0), SamplingParams(temperature=2.0, top_p=0.9)):
        sampler = Sampler(params)
        chosen = {choose_tokens([sampler], logits_of(0.05, 0.9, 0.05), suppressed)[0] for _ in range(60)}
        assert chosen <= {0, 2}


@pytest.mark.parametrize('top_p', [1.0, 0.9])
def test_rows_do_not_depend_on_their_neighbours(top_p):
    def sequence(others, row):
        samplers = [Sampler(SamplingParams(temperature=1.0, top_p=top_p, seed=seed)) for seed in others]
        logits = torch.randn((12, len(others), 40), generator=torch.Generator().manual_seed(5))
        logits[:, row] = torch.randn((12, 40), generator=torch.Generator().manual_seed(6))
        return [choose_tokens(samplers, step, None)[row] for step in logits]

    assert sequence([7], 0) == sequence([3, 7, 9], 1) == sequence([1, 2, 3, 4, 5, 6, 8, 7], 7)
    assert sequence([7], 0) != sequence([8], 0)


@pytest.mark.parametrize('temperature', [1e-320, 1e-40, 1e-8, 1e30])
def test_extreme_temperatures_do_not_break(temperature):
    logits = torch.tensor([[5.0, 100.0, 99.0, float('-inf')]])
    token = choose_tokens([Sampler(SamplingParams(temperature=temperature))], logits, None)[0]
    assert token == 1 if temperature < 1 else token in (0, 1, 2)


@pytest.mark.parametrize('broken', [math.nan, math.inf])
def test_broken_logits_give_no_token_and_leave_the_others_alone(broken):
    logits = torch.zeros((3, 4))
    logits[:, 2] = 1
    logits[1, 0] = broken
    for params in (SamplingParams(), SamplingParams(temperature=0.01)):
        assert choose_tokens([Sampler(params) for _ in range(3)], logits.clone(), None) == [2, None, 2]


@pytest.mark.parametrize('wrong', [{'max_tokens': 0}, {'temperature': -1.0}, {'temperature': math.nan},
                                   {'temperature': math.inf}, {'top_p': 0.0}, {'top_p': 1.1}, {'top_p': math.nan},
                                   {'seed': -1}, {'seed': 2**64}])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SamplingParams(**wrong)


def test_largest_seed_works():
    assert Sampler(SamplingParams(temperature=1.0, seed=2**63 - 1)).choose(torch.zeros(1)) == 0


def test_requests_need_an_id_and_room_in_the_queue():
    for wrong in ({'request_id': 0}, {'queue_limit': 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            TextRequest(**{'request_id': 1, 'task': 'speech', **wrong})
