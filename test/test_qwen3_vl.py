"""Qwen3-VL: which hidden state is which, whatever the installed transformers says, and what that version does."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from oxygen_ros.engine.kv_cache import CacheSpec, ExtraSpec, UnifiedKVCache
from oxygen_ros.models.initialise import initialise
from oxygen_ros.models.layers import rms_norm
from oxygen_ros.models.qwen3_vl import QwenDecoder
from oxygen_ros.models.qwen3_vl_checkpoint import parse_decoder, qwen_sources
from oxygen_ros.models.qwen3_vl_prefix import LAST_HIDDEN, Prefix, write_prefix

IMAGE = 9
GRIDS = torch.tensor([[1, 4, 4], [1, 2, 4]])  # patches
SIZES = [(2, 2), (1, 2)]                      # tokens
PROMPT = [1, 2, IMAGE, 3, IMAGE, 4, 5, 6]
TEXT = {'hidden_size': 32, 'num_hidden_layers': 4, 'intermediate_size': 48, 'num_attention_heads': 4, 'head_dim': 8,
        'num_key_value_heads': 2, 'vocab_size': 40, 'rms_norm_eps': 1e-6, 'hidden_act': 'silu',
        'tie_word_embeddings': True, 'rope_theta': 5e6,
        'rope_scaling': {'rope_type': 'default', 'mrope_interleaved': True, 'mrope_section': [2, 1, 1]}}
VISION = {'depth': 3, 'hidden_size': 16, 'intermediate_size': 24, 'num_heads': 2, 'patch_size': 16,
          'spatial_merge_size': 2, 'temporal_patch_size': 2, 'out_hidden_size': 32, 'num_position_embeddings': 16,
          'deepstack_visual_indexes': [0, 1], 'hidden_act': 'gelu_pytorch_tanh'}


@pytest.fixture(scope='module')
def theirs():
    """Return the model of the installed transformers, with random weights of order one."""
    config = Qwen3VLConfig(text_config=TEXT, vision_config=VISION, image_token_id=IMAGE, video_token_id=10,
                           vision_start_token_id=11, vision_end_token_id=12, tie_word_embeddings=True)
    torch.manual_seed(0)
    model = Qwen3VLForConditionalGeneration(config).eval()
    initialise(model, 0)
    return model


def inputs():
    prefix = Prefix.of(PROMPT, IMAGE, SIZES, torch.randn(24, 1536, generator=torch.Generator().manual_seed(1)), GRIDS)
    return prefix


@pytest.fixture(scope='module')
@torch.inference_mode()
def both(theirs):
    """Return what went into every layer and the final norm of theirs, their output, and what ours captured."""
    prefix, into = inputs(), []
    language = theirs.model.language_model
    hooks = [module.register_forward_pre_hook(lambda _, args, kwargs: into.append(
        (args[0] if args else kwargs['hidden_states'])[0].clone()), with_kwargs=True)
        for module in (*language.layers, language.norm)]
    ids = torch.tensor([prefix.tokens])
    output = theirs(input_ids=ids, attention_mask=torch.ones_like(ids), position_ids=prefix.positions[:, None],
                    pixel_values=prefix.pixels, image_grid_thw=prefix.grids, output_hidden_states=True,
                    mm_token_type_ids=(ids == IMAGE).int())
    for hook in hooks:
        hook.remove()
    config = parse_decoder(TEXT, 'test')
    network = torch.nn.Module()
    network.vision, network.decoder = theirs.model.visual, QwenDecoder(config, TEXT['vocab_size'], 64)
    state, parameters = dict(theirs.state_dict()), dict(network.decoder.named_parameters())
    for name, source in qwen_sources(network.vision, config, '').items():
        if name.startswith('decoder.'):
            parameters[name.removeprefix('decoder.')].copy_(torch.cat([state[part] for part in source.names]))
    cache = UnifiedKVCache(CacheSpec(config.depth, config.kv_heads, config.head_dim, 32, 0, 8, 2, 1,
                                     extras={LAST_HIDDEN: ExtraSpec((config.width,), torch.float32)}))
    captured = []
    write_prefix(network.vision, network.decoder, prefix, IMAGE, cache, cache.acquire_frame(1), captured)
    return into, output, captured, network.decoder, cache


def test_entry_i_is_what_goes_into_layer_i_and_the_last_what_goes_into_the_norm(both):
    into, _, captured, _, _ = both
    assert len(captured) == len(into) == TEXT['num_hidden_layers'] + 1
    for number, (mine, other) in enumerate(zip(captured, into)):
        assert torch.allclose(mine, other, atol=2e-5), number
    for mine, other in zip(captured, captured[1:]):
        assert not torch.allclose(mine, other, atol=0.1)  # the entries cannot be taken for each other


def test_the_first_entries_hold_what_deepstack_adds_at_image_tokens(both, theirs):
    _, _, captured, decoder, _ = both
    prefix = inputs()
    images = torch.tensor([token == IMAGE for token in prefix.tokens])
    with torch.inference_mode():
        cos, sin = decoder.rotary(prefix.positions)
        cache = UnifiedKVCache(CacheSpec(4, 2, 8, 32, 0, 8, 2, 1))
        bare = []
        decoder.prefill(captured[0], cache, cache.acquire_frame(1), prefix.positions,
                        images.nonzero().flatten(), [], bare)
    assert not torch.allclose(bare[1][images], captured[1][images], atol=0.1)
    assert torch.allclose(bare[1][~images], captured[1][~images], atol=1e-5)  # of text tokens only from layer 1 on


def test_logits_and_keys_are_those_of_the_installed_transformers(both):
    _, output, captured, decoder, cache = both
    with torch.inference_mode():
        assert torch.allclose(decoder.logits(captured[-1]), output.logits[0], atol=1e-4)
        assert torch.allclose(decoder.logits(cache.extras[LAST_HIDDEN][0]), output.logits[0, -1], atol=1e-4)
    length = len(captured[0])
    for number, layer in enumerate(output.past_key_values.layers):
        assert torch.allclose(cache.frame_k[number, 0, :, :length], layer.keys[0], atol=2e-5)
        assert torch.allclose(cache.frame_v[number, 0, :, :length], layer.values[0], atol=2e-5)


def test_hidden_states_of_the_installed_version_are_not_what_heads_were_trained_on(both):
    """If this fails, transformers has changed again what `hidden_states` means. Actions do not depend on it."""
    _, output, captured, decoder, _ = both
    images = torch.tensor([token == IMAGE for token in inputs().tokens])
    theirs = [entry[0] for entry in output.hidden_states]
    assert torch.allclose(theirs[-1], rms_norm(captured[-1], decoder.norm), atol=2e-5)  # behind the final norm
    assert not torch.allclose(theirs[1][images], captured[1][images], atol=0.1)         # before deepstack


def test_the_installed_transformers_is_one_that_was_tested():
    project = (Path(__file__).parent.parent / 'pyproject.toml').read_text()
    [bounds] = re.findall(r'"transformers>=([\d.]+),<([\d.]+)"', project)
    least, most, installed = ([int(part) for part in text.split('.')[:2]]
                              for text in (*bounds, version('transformers')))
    assert least <= installed < most


def test_a_picture_that_needs_no_resizing_is_only_scaled_and_cut():
    from oxygen_ros.models.qwen3_vl_vision import ImageProcessor

    config = {'merge_size': 2, 'patch_size': 16, 'temporal_patch_size': 2, 'image_mean': [0.5] * 3,
              'image_std': [0.5] * 3, 'size': {'shortest_edge': 1024, 'longest_edge': 16384}}
    picture = np.arange(64 * 64 * 3, dtype=np.uint8).reshape(64, 64, 3)
    pixels, grids = ImageProcessor(config, 64)([picture])
    assert grids.tolist() == [[1, 4, 4]] and pixels.shape == (16, 1536)
    first = torch.from_numpy(picture[:16, :16]).permute(2, 0, 1) / 127.5 - 1
    assert torch.allclose(pixels[0].view(3, 2, 16, 16)[:, 0], first, atol=1e-6)
    assert torch.equal(pixels[0].view(3, 2, 16, 16)[:, 0], pixels[0].view(3, 2, 16, 16)[:, 1])
