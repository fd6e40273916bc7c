"""What the config.yaml of a StarVLA checkpoint says: framework, prompt, sizes of the action head."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import yaml

from oxygen_ros.errors import ConfigError

logger = logging.getLogger(__name__)

CONFIG = 'config.yaml'
# Until then the blocks of PI and PI_v3 all attended to the context, whatever the checkpoint's config says.
INTERLEAVED_SINCE = datetime.date(2026, 6, 16)
_SHAPES = {'DiT-B': (768, 64), 'DiT-L': (1536, 48)}  # GR00T: width and numbers per head
_LAYERWISE_DECODER = 1024  # inner width of the decoder (and of the state encoder) of PI and PI_v3


class Framework(str, Enum):
    """The kind of action head; the values are StarVLA's names in lower case."""

    PI = 'qwenpi'
    PI_V3 = 'qwenpi_v3'
    GR00T = 'qwengr00t'
    OFT = 'qwenoft'
    FAST = 'qwenfast'

    @property
    def layerwise(self) -> bool:
        """Whether block i reads the output of decoder layer i."""
        return self in (Framework.PI, Framework.PI_V3)

    @property
    def state_as_text(self) -> bool:
        """Whether a state is written into the prompt."""
        return self in (Framework.PI_V3, Framework.OFT)


class Blocks(str, Enum):
    """Which blocks of PI and PI_v3 attend to the context: the tensors of a checkpoint cannot tell."""

    AUTO = 'auto'                # see `choose_interleaved`
    CROSS = 'cross'              # all
    INTERLEAVED = 'interleaved'  # the even ones; odd blocks attend to the head's own tokens


@dataclass(frozen=True)
class FlowConfig:
    """
    Sizes of a flow-matching head.

    :param hidden: width of the decoder's hidden states. :param layerwise: block i reads the output of decoder layer i,
        else all read the last one's. :param projected: hidden states go through a norm and a linear layer first.
    :param interleaved: odd blocks attend to the head's own tokens. :param inner: of state encoder and action decoder.
    :param output: numbers per token behind the last norm; None: there is no such norm.
    :param state_dim: None if the head takes no state. :param future: learned tokens in front of the actions.
    :param positions: learned positions of actions; None if there are none. :param sinusoidal: every block adds a table.
    :param buckets: flow times are counted in.
    :param steps: of the flow, where the model file says nothing else.
    """

    width: int
    depth: int
    head_dim: int
    hidden: int
    layerwise: bool
    projected: bool
    interleaved: bool
    inner: int
    output: int | None
    state_dim: int | None
    action_dim: int
    horizon: int
    future: int
    positions: int | None
    sinusoidal: bool
    buckets: int
    steps: int

    def __post_init__(self) -> None:
        if self.width % self.head_dim or self.width % 2:
            raise ValueError(f'width {self.width} of the action head must be even, and a multiple of head_dim '
                             f'{self.head_dim}')
        if self.positions is not None and self.positions < self.horizon:
            raise ValueError(f'the action head has {self.positions} positions for {self.horizon} actions')

    @property
    def heads(self) -> int:
        """Number of heads."""
        return self.width // self.head_dim

    @property
    def context_width(self) -> int:
        """Width of what keys and values of the context are made from."""
        return self.width if self.projected else self.hidden

    def attends_context(self, block: int) -> bool:
        """Return whether a block attends to the context."""
        return not self.interleaved or block % 2 == 0

    @property
    def context_blocks(self) -> int:
        """Number of blocks that attend to the context."""
        return sum(self.attends_context(block) for block in range(self.depth))


@dataclass(frozen=True)
class StarVlaConfig:
    """
    A parsed config.yaml. :param action: framework.action_model of the file.

    :param prompt: wraps the instruction, which stands for `{instruction}`. :param image_size: (width, height) that
        pictures are brought to first; None leaves them as they are. :param base: path or hub id of the base model.
    """

    framework: Framework
    action: Mapping
    action_dim: int
    horizon: int
    prompt: str
    image_size: tuple[int, int] | None
    base: str


def read_config(checkpoint: Path) -> StarVlaConfig:
    """
    Read the config.yaml of a checkpoint.

    :raises ConfigError: it is missing, no YAML, of a framework that is not known, or lacks a key.
    """
    path = checkpoint / CONFIG
    try:
        content = yaml.safe_load(path.read_text(encoding='utf-8'))
        framework = content['framework']
        name, action = str(framework['name']), dict(framework['action_model'])
        action_dim, horizon = int(action.get('action_dim', 7)), _horizon(action)
        base = str(framework['qwenvl']['base_vlm'])
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f'checkpoint {str(checkpoint)!r}: {CONFIG} cannot be read ({" ".join(str(error).split())}): '
                          'copy it there') from error
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f'checkpoint {str(checkpoint)!r}: {CONFIG} is no configuration of StarVLA ({error!r}): copy '
                          'that of the checkpoint') from error
    if name.lower() == 'qwenfm':
        name = Framework.PI.value  # an older name
    if name.lower() not in [known.value for known in Framework]:
        raise ConfigError(f'checkpoint {str(checkpoint)!r} is of framework {name!r}: known are '
                          f'{[known.value for known in Framework]} (in any case)')
    data = (content.get('datasets') or {}).get('vla_data') or {}
    size = data.get('obs_image_size')
    framework = Framework(name.lower())
    return StarVlaConfig(framework, action, action_dim, horizon, data.get('CoT_prompt') or '{instruction}',
                         None if not size or framework is Framework.FAST else (int(size[0]), int(size[1])), base)


def _horizon(action: Mapping) -> int:
    if action.get('action_horizon') is not None:
        return int(action['action_horizon'])
    return int(action['future_action_window_size']) + 1


def flow_config(config: StarVlaConfig, hidden: int, layers: int, blocks: Blocks, trained: datetime.date | None,
                has_state: bool) -> FlowConfig:
    """
    Return the sizes of the head of PI, PI_v3 or GR00T. What the config leaves out is as StarVLA's own defaults are.

    :param hidden, layers: of the decoder. :param blocks, trained: see `choose_interleaved`.
    :param has_state: whether the head is given a state.
    :raises ValueError: it asks for what this version does not have. :raises KeyError: the config lacks a key.
    """
    action, framework = config.action, config.framework
    dit = dict(action.get('diffusion_model_cfg') or {})
    if dit.get('norm_type', 'ada_norm') != 'ada_norm' or dit.get('positional_embeddings') not in (None, 'sinusoidal'):
        raise ValueError(f'{CONFIG} of the checkpoint asks for blocks that this version does not have: {dit}')
    if framework is Framework.GR00T:
        kind = action.get('action_model_type', 'DiT-B')
        width, head_dim = _SHAPES.get(kind, (dit.get('input_embedding_dim'), dit.get('attention_head_dim')))
        if width is None or head_dim is None:
            raise ValueError(f'{CONFIG} of the checkpoint: action_model_type {kind!r} is not known, and '
                             'diffusion_model_cfg has no input_embedding_dim and attention_head_dim')
        inner = int(action.get('hidden_size', 1024))
        output, depth = int(dit.get('output_dim', inner)), int(dit.get('num_layers', 16))
    else:
        width = hidden
        if framework is Framework.PI_V3:
            width = int(dit.get('action_dit_hidden_dim', 1024) or hidden)
        head_dim, inner = int(dit.get('attention_head_dim', 64)), _LAYERWISE_DECODER
        output, depth = None, layers
    state_dim = action.get('state_dim', 7)
    if has_state and not state_dim:
        raise ValueError('the checkpoint takes no state: set `state: none`')
    return FlowConfig(
        width=width, depth=depth, head_dim=head_dim, hidden=hidden, layerwise=framework.layerwise,
        projected=framework is Framework.PI_V3 and width != hidden,
        interleaved=choose_interleaved(framework, dit, blocks, trained), inner=inner, output=output,
        state_dim=int(state_dim) if has_state else None, action_dim=config.action_dim,
        horizon=config.horizon, future=int(action.get('num_target_vision_tokens', 32)),
        positions=int(action.get('max_seq_len', 1024)) if action.get('add_pos_embed', True) else None,
        sinusoidal=dit.get('positional_embeddings') == 'sinusoidal',
        buckets=int(action.get('num_timestep_buckets', 1000)), steps=int(action.get('num_inference_timesteps', 4)))


def choose_interleaved(framework: Framework, dit: Mapping, blocks: Blocks, trained: datetime.date | None) -> bool:
    """
    Return whether odd blocks attend to the head's own tokens.

    GR00T always did as its config says. For PI and PI_v3, `auto` is: `use_canonical_forward` decides where the config
    has it; else all blocks attend to the context if the weights were trained before `INTERLEAVED_SINCE`; else
    `interleave_self_attention` decides.

    :param dit: diffusion_model_cfg. :param trained: when, if known.
    """
    canonical = dit.get('use_canonical_forward')
    flag = bool(dit.get('interleave_self_attention', framework is not Framework.PI_V3)
                if canonical is None else canonical)
    if not framework.layerwise:
        return flag
    if blocks is not Blocks.AUTO:
        return blocks is Blocks.INTERLEAVED
    if canonical is None and trained is not None:
        return flag and trained >= INTERLEAVED_SINCE
    if flag and canonical is None:
        logger.warning('odd blocks of the action head attend to its own tokens, as config.yaml of the checkpoint says; '
                       'for weights trained before %s set `trained` or `blocks: cross` in the model file: the weights '
                       'themselves cannot tell', INTERLEAVED_SINCE)
    return flag
