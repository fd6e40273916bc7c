"""The network of StarVLA: Qwen3-VL and an action head, and which tensors of a checkpoint they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from oxygen_ros.models.checkpoints import Source
from oxygen_ros.models.qwen3_vl import QwenConfig, QwenDecoder
from oxygen_ros.models.qwen3_vl_checkpoint import qwen_sources
from oxygen_ros.models.qwen3_vl_vision import vision_tower
from oxygen_ros.models.starvla_flow import FlowHead
from oxygen_ros.models.starvla_oft import OftHead

LANGUAGE = 'qwen_vl_interface.model.'
HEAD = 'head.'  # in front of the names of the head's parameters


class StarVlaNetwork(nn.Module):
    """
    Vision tower, decoder, action head.

    :param vision: the base model's vision_config. :param head: built on the meta device; None: it has no parameters.
    :param positions: that the decoder may use.
    """

    def __init__(self, vision: Mapping, decoder: QwenConfig, vocabulary: int, positions: int,
                 head: FlowHead | OftHead | None) -> None:
        super().__init__()
        self.vision = vision_tower(vision)
        self.decoder = QwenDecoder(decoder, vocabulary, positions)
        self.head = head


def sources(network: StarVlaNetwork) -> dict[str, Source]:
    """Return where each parameter comes from."""
    result = qwen_sources(network.vision, network.decoder.config, LANGUAGE)
    if isinstance(network.head, FlowHead):
        result |= _flow_sources(network.head)
    elif isinstance(network.head, OftHead):
        result |= _oft_sources(network.head)
    return result


def unused(network: StarVlaNetwork) -> list[str]:
    """Return the tensors that a checkpoint may hold and no action depends on."""
    names = [f'{LANGUAGE}lm_head.weight']  # tied to the embedding
    if isinstance(network.head, FlowHead):
        model = 'action_model.'
        parts = [f'{model}state_encoder.layer1', f'{model}state_encoder.layer2', f'{model}model.proj_out_1',
                 f'{model}model.proj_out_2']
        names += [f'{part}.{kind}' for part in parts for kind in ('weight', 'bias')]
        names += [f'{model}model.transformer_blocks.{i}.pos_embed.pe' for i in range(network.head.config.depth)]
    return names


def _flow_sources(head: FlowHead) -> dict[str, Source]:
    c, model = head.config, 'action_model.'
    result = {'head.future': Source((f'{model}future_tokens.weight',))}
    if c.positions is not None:
        result['head.positions'] = Source((f'{model}position_embedding.weight',))
    linear = [('time_in', 'model.timestep_encoder.timestep_embedder.linear_1'),
              ('time_out', 'model.timestep_encoder.timestep_embedder.linear_2'),
              *((f'action_in.{i}', f'action_encoder.layer{i + 1}') for i in range(3)),
              *((f'action_out.{i}', f'action_decoder.layer{i + 1}') for i in range(2))]
    if c.state_dim is not None:
        linear += [(f'state_in.{i}', f'state_encoder.layer{i + 1}') for i in range(2)]
    if c.output is not None:
        linear += [('output_modulate', 'model.proj_out_1'), ('output', 'model.proj_out_2')]
    for i in range(c.depth):
        here, there = f'blocks.{i}', f'model.transformer_blocks.{i}'
        linear += [(f'{here}.modulate', f'{there}.norm1.linear'), (f'{here}.q', f'{there}.attn1.to_q'),
                   (f'{here}.out', f'{there}.attn1.to_out.0'), (f'{here}.up', f'{there}.ff.net.0.proj'),
                   (f'{here}.down', f'{there}.ff.net.2')]
        for kind in ('weight', 'bias'):
            result[f'head.{here}.kv.{kind}'] = Source(tuple(f'{model}{there}.attn1.to_{x}.{kind}' for x in 'kv'))
    result |= _linear([(here, model + there) for here, there in linear])
    if c.projected:
        result |= _linear([(f'projections.{i}.{j}', f'project_layers.{i}.{j}')
                           for i in range(c.depth) for j in range(2)])
    return result


def _oft_sources(head: OftHead) -> dict[str, Source]:
    model = 'action_model.model.'
    return _linear([('norm_in', f'{model}layer_norm1'), ('linear_in', f'{model}fc1'),
                    ('norm_out', f'{model}layer_norm2'), ('linear_out', f'{model}fc2'),
                    *((f'blocks.{i}.{j}', f'{model}mlp_resnet_blocks.{i}.ffn.{j}')
                      for i in range(len(head.blocks)) for j in range(2))])


def _linear(pairs: Sequence[tuple[str, str]]) -> dict[str, Source]:
    """Return the sources of weight and bias of modules of the head."""
    return {f'{HEAD}{here}.{kind}': Source((f'{there}.{kind}',)) for here, there in pairs
            for kind in ('weight', 'bias')}
