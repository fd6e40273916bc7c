"""The network of Xiaomi-Robotics-0: Qwen3-VL and its action head, and which tensors of a checkpoint they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from oxygen_ros.models.checkpoints import Source
from oxygen_ros.models.qwen3_vl import QwenConfig, QwenDecoder
from oxygen_ros.models.qwen3_vl_checkpoint import mlp_sources, parse_decoder, qwen_sources
from oxygen_ros.models.qwen3_vl_vision import vision_tower
from oxygen_ros.models.xiaomi_dit import DitConfig, XiaomiDit

# In some files, not in the network: the head is tied to the embedding.
UNUSED = ('vlm.lm_head.weight',)


@dataclass(frozen=True)
class XiaomiConfig:
    """Sizes of the network; `vision` is the checkpoint's vision_config."""

    vision: Mapping
    decoder: QwenConfig
    dit: DitConfig
    vocabulary: int
    image_token: int


def parse_config(config: Mapping, horizon: int) -> XiaomiConfig:
    """
    Return the sizes that a checkpoint's config.json gives.

    :param horizon: actions per chunk, which the statistics of a robot type decide.
    :raises ValueError: it is of another kind of model. :raises KeyError: it lacks a key.
    """
    if config.get('model_type') != 'mibot':
        raise ValueError(f'config.json of the checkpoint is of type {config.get("model_type")!r}, not mibot')
    text, head = config['vlm_config']['text_config'], config['dit_config']
    decoder = parse_decoder(text, 'config.json of the checkpoint')
    if (head['head_dim'], head['num_key_value_heads']) != (decoder.head_dim, decoder.kv_heads):
        raise ValueError('config.json of the checkpoint: the action head has keys of another size than the decoder, '
                         'whose cache it reads')
    dit = DitConfig(head['hidden_size'], head['num_hidden_layers'], decoder.head_dim, decoder.kv_heads,
                    decoder.depth - head['num_hidden_layers'], config['state_length'], config['state_dim'],
                    config['action_dim'], horizon)
    return XiaomiConfig(config['vlm_config']['vision_config'], decoder, dit, text['vocab_size'],
                        config['vlm_config']['image_token_id'])


class XiaomiNetwork(nn.Module):
    """Vision tower, decoder, action head. :param positions: that the decoder and the head may use."""

    def __init__(self, config: XiaomiConfig, positions: int) -> None:
        super().__init__()
        self.config = config
        self.vision = vision_tower(config.vision)
        self.decoder = QwenDecoder(config.decoder, config.vocabulary, positions)
        self.dit = XiaomiDit(config.dit)

    def rotary(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the decoder's tables of cos and sin, which the head uses too."""
        return self.decoder.cos, self.decoder.sin


def sources(network: XiaomiNetwork) -> dict[str, Source]:
    """Return where each parameter comes from."""
    result = qwen_sources(network.vision, network.config.decoder, 'vlm.')
    result['dit.sink'] = Source(('sink.weight',))
    for here, there in (('state_in', 'state_projector'), ('action_in', 'action_projector'),
                        ('action_out', 'action_output_layer')):
        for number in (0, 2):
            result[f'dit.{here}.{number}.weight'] = Source((f'{there}.layers.{number}.weight',))
    result['dit.time_in.weight'] = Source(('t_embedder.mlp.0.weight',))
    result['dit.time_out.weight'] = Source(('t_embedder.mlp.2.weight',))
    for part in ('weight', 'bias'):
        result[f'dit.modulate.{part}'] = Source((f't_projector.layers.0.{part}',))
    for i in range(network.config.dit.depth):
        target = source = f'dit.layers.{i}'
        result |= mlp_sources(target, source)
        result[f'{target}.table'] = Source((f'{source}.adaln_table',))
        result[f'{target}.qkv.bias'] = Source((f'{source}.attn.qkv_proj.bias',))
        for here, there in (('norm_in', 'input_layernorm'), ('norm_middle', 'middle_layernorm'),
                            ('norm_post', 'post_layernorm'), ('norm_final', 'final_layernorm'),
                            ('q_norm', 'attn.q_norm'), ('k_norm', 'attn.k_norm'), ('qkv.weight', 'attn.qkv_proj'),
                            ('out.weight', 'attn.o_proj')):
            result[f'{target}.{here}'] = Source((f'{source}.{there}.weight',))
    return result
