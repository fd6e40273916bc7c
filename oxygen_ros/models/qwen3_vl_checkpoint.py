"""What the families on Qwen3-VL share when they load: sizes, names of tensors, filling a network once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TypeVar

from torch import nn

from oxygen_ros.models.checkpoints import DtypeRule, LogProgress, Source, load_strict, require_memory
from oxygen_ros.models.qwen3_vl import QwenConfig
from oxygen_ros.models.qwen3_vl_vision import fill_buffers
from oxygen_ros.models.registry import DTYPES, LoadOptions

EPSILON = 1e-6  # of all RMS norms

Network = TypeVar('Network', bound=nn.Module)


def parse_decoder(text: Mapping, where: str) -> QwenConfig:
    """
    Return the sizes that a text_config gives.

    :param where: names the file in errors.
    :raises ValueError: it asks for what this version does not have. :raises KeyError: it lacks a key.
    """
    rope = text.get('rope_scaling') or text['rope_parameters']
    if text.get('rms_norm_eps', EPSILON) != EPSILON or not rope.get('mrope_interleaved', True):
        raise ValueError(f'{where} asks for norms or positions that this version does not have: rms_norm_eps '
                         f'{text.get("rms_norm_eps")}, {rope}')
    theta = text['rope_theta'] if 'rope_theta' in text else rope['rope_theta']
    return QwenConfig(text['hidden_size'], text['num_hidden_layers'], text['intermediate_size'],
                      text['num_attention_heads'], text['num_key_value_heads'], text['head_dim'], theta,
                      tuple(rope['mrope_section']))


def qwen_sources(vision: nn.Module, config: QwenConfig, prefix: str) -> dict[str, Source]:
    """Return where the parameters of `vision` and `decoder` come from. :param prefix: of Qwen3-VL in the file."""
    result = {f'vision.{name}': Source((f'{prefix}model.visual.{name}',)) for name, _ in vision.named_parameters()}
    language = f'{prefix}model.language_model'
    result['decoder.embedding.weight'] = Source((f'{language}.embed_tokens.weight',))
    result['decoder.norm'] = Source((f'{language}.norm.weight',))
    rows = (config.heads * config.head_dim, *(config.kv_heads * config.head_dim,) * 2)
    for i in range(config.depth):
        target, source = f'decoder.layers.{i}', f'{language}.layers.{i}'
        result |= mlp_sources(target, source)
        result[f'{target}.qkv.weight'] = Source(tuple(f'{source}.self_attn.{x}_proj.weight' for x in 'qkv'), rows)
        for here, there in (('norm1', 'input_layernorm'), ('norm2', 'post_attention_layernorm'),
                            ('q_norm', 'self_attn.q_norm'), ('k_norm', 'self_attn.k_norm'),
                            ('out.weight', 'self_attn.o_proj')):
            result[f'{target}.{here}'] = Source((f'{source}.{there}.weight',))
    return result


def mlp_sources(target: str, source: str) -> dict[str, Source]:
    """Return where a gated MLP of a layer comes from."""
    return {f'{target}.gate_up.weight': Source((f'{source}.mlp.gate_proj.weight', f'{source}.mlp.up_proj.weight')),
            f'{target}.down.weight': Source((f'{source}.mlp.down_proj.weight',))}


def fill_network(name: str, network: Network, path: Path, sources: Mapping[str, Source], unused: Collection[str],
                 rules: Mapping[str, DtypeRule], options: LoadOptions) -> Network:
    """
    Check that a network built on the meta device fits, then fill it once.

    :param path: of the weights, see `load_strict`. :param rules: name of a dtype -> dtype of each parameter.
    :raises ConfigError: it does not fit into the memory, or the weights do not fit it.
    """
    fill_buffers(network.vision)
    chosen = next(choice for choice, dtype in DTYPES.items() if dtype is options.dtype)
    budget = options.memory_budget_mib
    require_memory(name, network, rules, chosen, options.device, None if budget is None else int(budget * 2**20))
    load_strict(network, path, sources, unused=unused, dtype=rules[chosen], device=options.device,
                progress=options.progress or LogProgress(f'loading {path}'))
    return network.to(options.device).eval()
