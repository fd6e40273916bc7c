"""Weights of π0.5: which tensors of openpi's and LeRobot's files make up the network, and their dtypes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch

from oxygen_ros.errors import ConfigError
from oxygen_ros.models.checkpoints import DtypeRule, Source, tensor_names
from oxygen_ros.models.gemma import GemmaConfig
from oxygen_ros.models.pi0_network import Pi0Config

LEROBOT_PREFIX = 'model.'

_P = 'paligemma_with_expert.'
_VISION = _P + 'paligemma.model.vision_tower.vision_model'
_LANGUAGE = _P + 'paligemma.model.language_model'
_EXPERT = _P + 'gemma_expert.model'
_EMBEDDING, _HEAD = _LANGUAGE + '.embed_tokens.weight', _P + 'paligemma.lm_head.weight'

# In the files, not in the network: the expert's head is never used, and the decoder's is tied to the embedding, which
# is the one that fine-tuning keeps up to date.
UNUSED = (_P + 'gemma_expert.lm_head.weight', _HEAD)

# Tensors that π0 has and π0.5 has not.
_PI0 = re.compile(r'state_proj\.|action_time_mlp_|' + re.escape(_EXPERT) + r'\..*norm\.weight$')

# Kept in float32 whatever the dtype, as openpi does: where images enter, the norms of decoder and expert (the adaptive
# ones are dense layers), and the projections of actions and time.
_FLOAT32 = re.compile(r'vision\.(patch|position)_embedding|decoder\.(layers\.\d+\.)?norm|expert\.(action|time)_|'
                      r'expert\..*modulation')


def dtype_rule(dtype: torch.dtype) -> DtypeRule:
    """Return the dtype of each parameter of a `Pi0Network` that computes in `dtype`."""
    return lambda name: torch.float32 if _FLOAT32.match(name) else dtype


def file_prefix(path: Path) -> str:
    """
    Return what stands in front of all names in a file: nothing in openpi's, 'model.' in LeRobot's.

    :raises ConfigError: the file is of π0, which this family cannot run.
    """
    names = tensor_names(path)
    prefix = LEROBOT_PREFIX if any(name.startswith(LEROBOT_PREFIX + _P) for name in names) else ''
    pi0 = next((name for name in names if _PI0.match(name.removeprefix(prefix))), None)
    if pi0 is not None:
        raise ConfigError(f'checkpoint {str(path)!r} is of π0, not of π0.5 (it has the tensor {pi0}): choose a '
                          'checkpoint of π0.5')
    return prefix


def sources(config: Pi0Config) -> Mapping[str, Source]:
    """Return where each parameter of a `Pi0Network` comes from, by the names of openpi's file."""
    result: dict[str, Source] = {}

    def copy(target: str, source: str, *parts: str) -> None:
        for part in parts:
            result[f'{target}.{part}'] = Source((f'{source}.{part}',))

    both = ('weight', 'bias')
    copy('vision.patch_embedding', f'{_VISION}.embeddings.patch_embedding', *both)
    result['vision.position_embedding'] = Source((f'{_VISION}.embeddings.position_embedding.weight',))
    for i in range(config.vision.layers):
        target, source = f'vision.layers.{i}', f'{_VISION}.encoder.layers.{i}'
        for here, there in (('norm1', 'layer_norm1'), ('norm2', 'layer_norm2'), ('out', 'self_attn.out_proj'),
                            ('fc1', 'mlp.fc1'), ('fc2', 'mlp.fc2')):
            copy(f'{target}.{here}', f'{source}.{there}', *both)
        for part in both:
            result[f'{target}.qkv.{part}'] = Source(tuple(f'{source}.self_attn.{x}_proj.{part}' for x in 'qkv'))
    copy('vision.post_norm', f'{_VISION}.post_layernorm', *both)
    copy('vision.projector', f'{_P}paligemma.model.multi_modal_projector.linear', *both)

    result['decoder.embedding.weight'] = Source((_EMBEDDING,), instead=(_HEAD,))
    result['decoder.norm'] = Source((f'{_LANGUAGE}.norm.weight',), add=1.0)
    for i in range(config.decoder.depth):
        target, source = f'decoder.layers.{i}', f'{_LANGUAGE}.layers.{i}'
        result |= _layer(config.decoder, target, source)
        result[f'{target}.norm1'] = Source((f'{source}.input_layernorm.weight',), add=1.0)
        result[f'{target}.norm2'] = Source((f'{source}.post_attention_layernorm.weight',), add=1.0)

    for i in range(config.expert.depth):
        target, source = f'expert.layers.{i}', f'{_EXPERT}.layers.{i}'
        result |= _layer(config.expert, target, source)
        copy(f'{target}.modulation1', f'{source}.input_layernorm.dense', *both)
        copy(f'{target}.modulation2', f'{source}.post_attention_layernorm.dense', *both)
    copy('expert.norm_modulation', f'{_EXPERT}.norm.dense', *both)
    for here, there in (('action_in', 'action_in_proj'), ('action_out', 'action_out_proj'), ('time_in', 'time_mlp_in'),
                        ('time_out', 'time_mlp_out')):
        copy(f'expert.{here}', there, *both)
    return result


def _layer(config: GemmaConfig, target: str, source: str) -> dict[str, Source]:
    """Return what the layers of decoder and expert have in common."""
    rows = (config.heads * config.head_dim, *(config.kv_heads * config.head_dim,) * 2)
    return {
        f'{target}.qkv.weight': Source(tuple(f'{source}.self_attn.{x}_proj.weight' for x in 'qkv'), rows),
        f'{target}.out.weight': Source((f'{source}.self_attn.o_proj.weight',)),
        f'{target}.gate_up.weight': Source((f'{source}.mlp.gate_proj.weight', f'{source}.mlp.up_proj.weight')),
        f'{target}.down.weight': Source((f'{source}.mlp.down_proj.weight',)),
    }
