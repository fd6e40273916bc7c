"""
Xiaomi-Robotics-0: Qwen3-VL and a diffusion transformer on its KV.

Prefix (causal): pictures and instruction as in the released prompt. Texts decode behind it, each in a turn of its own;
a text without a prompt goes on from the last token of the prefix. The state is kept with the frame, for the action head
alone. Sizes come from the checkpoint; views, words and embodiment are data, in config/models/xiaomi_robotics_0.yaml.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from oxygen_ros.engine.kv_cache import UnifiedKVCache
from oxygen_ros.errors import ConfigError
from oxygen_ros.models.byte_tokenizer import ByteTokenizer
from oxygen_ros.models.chat_prompt import chat_prompt
from oxygen_ros.models.checkpoint_statistics import CheckpointStatistics, read_json
from oxygen_ros.models.interface import ExtraSpec, ModelSpec, PolicyInput
from oxygen_ros.models.prompt_context import NO_CONTEXT, ContextKind, PromptContext, context_kinds
from oxygen_ros.models.qwen3_vl_checkpoint import fill_network
from oxygen_ros.models.qwen3_vl_prefix import LAST_HIDDEN, Prefix, write_prefix
from oxygen_ros.models.qwen3_vl_vision import ImageProcessor
from oxygen_ros.models.realtime_chunking import PreviousChunk
from oxygen_ros.models.registry import DTYPES, LoadOptions
from oxygen_ros.models.xiaomi_dit import Asynchrony
from oxygen_ros.models.xiaomi_network import UNUSED, XiaomiConfig, XiaomiNetwork, parse_config, sources

logger = logging.getLogger(__name__)

TASKS = ('speech', 'answer', 'memory')
BRANCH_POSITIONS = 4096  # longest branch that positions are prepared for
LONGEST_TOKEN = 32  # characters per token that are looked at
LEAST_STD = 1e-5  # an action that varies less has no meaning
STATE = 'state'

HEAD = '<|im_start|>user\nThe following observations are captured from multiple views.\n'
VIEW = '# {view}\n<|vision_start|><|image_pad|><|vision_end|>\n'
TASK = 'Generate robot actions for the task:\n'
TAIL = ' /no_cot<|im_end|>\n<|im_start|>assistant\n<cot></cot><|im_end|>\n'


class XiaomiModel:
    """
    Adapter of the xiaomi family; implements `VLAModel`.

    Actions leave it in the units of the checkpoint's statistics, which differ from action to action of a chunk.

    :param config: parsed `config/models/xiaomi_robotics_0.yaml`.
    """

    def __init__(self, config: Mapping, options: LoadOptions) -> None:
        checkpoint = options.checkpoint
        name = config.get('name', 'xiaomi')
        if checkpoint is None:
            raise ConfigError(f'model {name} has no sizes of its own: give a checkpoint')
        preprocessor = read_json(checkpoint / 'preprocessor_config.json', 'the preprocessor of the checkpoint')
        self._mean, self._std = _statistics(preprocessor, config['robot_type'])
        network = parse_config(read_json(checkpoint / 'config.json', 'config.json of the checkpoint'), len(self._mean))
        self.tokenizer = ByteTokenizer(checkpoint)
        self._views: Mapping[str, str] = config['views']
        self._tasks = {task: config['tasks'][task] for task in TASKS}
        self._images = ImageProcessor(preprocessor, config['image_tokens'])
        # Of weights that were post-trained for it; the published ones are run without.
        self.asynchrony, self._longest = _asynchrony(config.get('asynchronous') or {})
        if self._longest:
            self.longest_trained_delay = self._longest  # only a model with this can continue chunks
        prefix_tokens = len(self._views) * config['image_tokens'] + config['prompt_tokens']
        self._prompt_tokens = config['prompt_tokens']
        self._cut = ''  # the last instruction that was too long
        positions = prefix_tokens + BRANCH_POSITIONS + network.dit.tokens + self.asynchrony.offset
        kind = {'dtype': torch.float32, 'device': options.device}
        self.mask = torch.from_numpy(self._std > LEAST_STD).to(**kind)
        stop = frozenset({self.tokenizer.control('<|im_end|>')})
        self.spec = ModelSpec(
            name=name, weights=str(checkpoint), random_weights=False, layers=network.decoder.depth,
            kv_heads=network.decoder.kv_heads, head_dim=network.decoder.head_dim, vocabulary=network.vocabulary,
            prefix_tokens=prefix_tokens, branch_tokens=BRANCH_POSITIONS, horizon=network.dit.horizon,
            action_dim=network.dit.action_dim, action_period=config['action_period'], cameras=tuple(self._views),
            denoise_steps=config['denoise_steps'], stop_tokens=stop,
            suppressed_tokens=tuple(token for token in range(network.vocabulary)
                                    if token not in stop and not self.tokenizer.token_bytes(token)),
            first_action_offset=config.get('first_action_offset', 0), dtype=options.dtype, device=options.device,
            frame_extras={LAST_HIDDEN: ExtraSpec((network.decoder.width,), options.dtype),
                          STATE: ExtraSpec((network.dit.state_length, network.dit.state_dim), torch.float32)},
            text_head_trained=config['text_head_trained'], context=context_kinds(config, ContextKind),
            # Neither is left to normalise: states go in as they are, actions come out in their units.
            statistics=CheckpointStatistics(str(checkpoint), {}, {}, None, None), scratch_tokens=0)
        options.admit(self.spec)
        self.network = _load(name, network, positions, options)

    def prefix(self, inputs: PolicyInput, instruction: str) -> Prefix:
        """Return what the decoder reads; absent cameras are left out, and an instruction that is too long is cut."""
        given, image = inputs.observation.images, self.network.config.image_token
        cameras = [name for name in self.spec.cameras if name in given]
        pixels, grids = self._images([given[name] for name in cameras]) if cameras else (None, None)
        sizes = self._images.token_grids(grids) if cameras else []
        head = self.tokenizer.encode_markup(HEAD + ''.join(VIEW.format(view=self._views[name]) for name in cameras)
                                            + TASK)
        tail = self.tokenizer.encode_markup(TAIL)
        room = self._prompt_tokens - len(head) - len(tail) + len(cameras)
        if room < 1:
            raise ValueError(f'prompt_tokens {self._prompt_tokens} leaves no room for the instruction: raise it in the '
                             'model file')
        longest = LONGEST_TOKEN * self._prompt_tokens
        words = self.tokenizer.encode(_sentence(instruction[:longest]))
        if (len(words) > room or len(instruction) > longest) and self._cut != instruction:
            self._cut = instruction
            logger.warning('the instruction of %d characters is cut to %d tokens to fit into prompt_tokens %d',
                           len(instruction), room, self._prompt_tokens)
        return Prefix.of(head + words[:room] + tail, image, sizes, pixels, grids)

    def prefill(self, inputs: PolicyInput, instruction: str, cache: UnifiedKVCache, frame: int,
                captured: list[torch.Tensor] | None = None) -> None:
        """Write the prefix of an observation into a frame slot; see `VLAModel.prefill` and `QwenDecoder.prefill`."""
        state, network = self._state(inputs.state), self.network
        prefix = self.prefix(inputs, instruction)
        write_prefix(network.vision, network.decoder, prefix, network.config.image_token, cache, frame, captured)
        cache.extras[STATE][frame].copy_(state)

    def prefill_subtask(self, inputs: PolicyInput, task: str, cache: UnifiedKVCache, frame: int) -> None:
        """Never called: this family has no prompt for subtasks."""
        raise NotImplementedError(f'model {self.spec.name} knows no subtasks')

    def denoise(self, cache: UnifiedKVCache, frame: int, noise: torch.Tensor, steps: int,
                previous: PreviousChunk | None = None) -> torch.Tensor:
        """
        Generate an action chunk in the units of the statistics; see `VLAModel.denoise`.

        :param previous: its first `delay` actions are fixed; only with `asynchronous` in the model file.
        """
        given = None
        if previous is not None and self._longest:
            given = self.normalise(previous.actions[:min(previous.delay, self._longest)])
        return self.unnormalise(self.raw_actions(cache, frame, noise, steps, given))

    def raw_actions(self, cache: UnifiedKVCache, frame: int, noise: torch.Tensor, steps: int,
                    given: torch.Tensor | None = None) -> torch.Tensor:
        """Return the actions as the network gives them, float32 [horizon, action_dim] on the CPU."""
        state, device = cache.extras[STATE][frame], self.spec.device
        return self.network.dit.denoise(noise.to(device), state, self.mask, cache, frame, steps, self.network.rotary(),
                                        self.asynchrony, None if given is None else given.to(device)).cpu()

    def unnormalise(self, actions: torch.Tensor) -> torch.Tensor:
        """Return actions in the units of the statistics."""
        return (actions.double() * torch.from_numpy(self._std) + torch.from_numpy(self._mean)).float()

    def normalise(self, actions: torch.Tensor) -> torch.Tensor:
        """Return actions as the network gives them, of the first of a chunk in the units of the statistics."""
        count, std = len(actions), torch.from_numpy(self._std)
        normalised = (actions.double() - torch.from_numpy(self._mean)[:count]) / std[:count].clamp(min=LEAST_STD)
        return torch.where(std[:count] > LEAST_STD, normalised, 0.0).float()

    def prefix_logits(self, cache: UnifiedKVCache, frame: int) -> torch.Tensor:
        """Return the logits of the first token of a text without a prompt; see `VLAModel.prefix_logits`."""
        return self.network.decoder.logits(cache.extras[LAST_HIDDEN][frame])

    def extend(self, cache: UnifiedKVCache, slots: Sequence[int], tokens: Sequence[Sequence[int]]) -> torch.Tensor:
        """Add tokens to branches; see `VLAModel.extend`."""
        return self.network.decoder.extend(cache, slots, tokens)

    def branch_prompt(self, task: str, text: str, context: PromptContext = NO_CONTEXT) -> list[int]:
        """Return a turn of the user; see `VLAModel.branch_prompt`. Empty words: the text goes on from the prefix."""
        return chat_prompt(self.tokenizer, self._tasks[task].replace('{text}', text), context)

    def _state(self, state: np.ndarray) -> torch.Tensor:
        """Return the state behind which zeros fill up what the network expects."""
        c = self.network.config.dit
        if state.size > c.state_length * c.state_dim:
            raise ValueError(f'a state of {state.size} numbers, model {self.spec.name} takes '
                             f'{c.state_length * c.state_dim}: choose another layout')
        padded = torch.zeros(c.state_length * c.state_dim)
        padded[:state.size] = torch.from_numpy(np.ravel(state)).float()
        return padded.view(c.state_length, c.state_dim)


def load(config: Mapping, options: LoadOptions) -> XiaomiModel:
    """Return the model of a parsed model file; see `registry.load_model`."""
    return XiaomiModel(config, options)


def _sentence(instruction: str) -> str:
    """Return an instruction as the prompt wants it: with a capital and a full stop."""
    instruction = instruction.strip()
    return instruction[:1].upper() + instruction[1:] + ('' if instruction.endswith('.') else '.')


def _load(name: str, config: XiaomiConfig, positions: int, options: LoadOptions) -> XiaomiNetwork:
    """Build the network without memory, check that it fits, then fill it once."""
    with torch.device('meta'):
        network = XiaomiNetwork(config, positions)
    rules = {choice: lambda name, dtype=dtype: dtype for choice, dtype in DTYPES.items()}
    return fill_network(name, network, options.checkpoint, sources(network), UNUSED, rules, options)


def _statistics(preprocessor: Mapping, robot_type: str) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of a robot type's actions, float64 [horizon, action_dim] each."""
    known = preprocessor.get('action_config', {})
    if robot_type not in known:
        raise ConfigError(f'robot_type is {robot_type!r}, the checkpoint knows {sorted(known)}: choose one of these in '
                          'the model file')
    mean, std = (np.asarray(known[robot_type][key], dtype=np.float64) for key in ('mean', 'std'))
    if mean.ndim != 2 or mean.shape != std.shape or not (np.isfinite(mean).all() and np.isfinite(std).all()):
        raise ConfigError(f'statistics of robot_type {robot_type!r} in the checkpoint: mean and std must be finite, of '
                          f'one shape [actions, numbers], not {list(mean.shape)} and {list(std.shape)}')
    return mean, std


def _asynchrony(config: Mapping) -> tuple[Asynchrony, int]:
    """Return how asynchronous weights are run, and how many actions they were trained to find fixed."""
    return Asynchrony(int(config.get('offset', 0)), config.get('window')), int(config.get('longest_prefix', 0))
