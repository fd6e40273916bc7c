"""
π0.5 of Physical Intelligence: checkpoints in openpi's and in LeRobot's format.

Prefix: image tokens of the cameras present, then the prompt. Texts decode as causal branches behind it; a text without
a prompt of its own starts from the last token of the prefix. Sizes, prompts and embodiments are data, in
config/models/pi05_*.yaml.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from oxygen_ros.engine.kv_cache import UnifiedKVCache
from oxygen_ros.errors import ConfigError
from oxygen_ros.models.checkpoint_statistics import PREPROCESSOR, read_statistics
from oxygen_ros.models.checkpoints import LogProgress, allocate, load_strict, require_memory, weights_file
from oxygen_ros.models.initialise import initialise
from oxygen_ros.models.interface import ModelSpec, PolicyInput, TextTokenizer
from oxygen_ros.models.pi0_adapter import Pi0Adapter
from oxygen_ros.models.pi0_network import Pi0Config, Pi0Network
from oxygen_ros.models.pi05_config import BRANCH_POSITIONS, check_config, network_config
from oxygen_ros.models.pi05_prompt import PromptEncoder
from oxygen_ros.models.pi05_weights import UNUSED, dtype_rule, file_prefix, sources
from oxygen_ros.models.prompt_context import NO_CONTEXT, PromptContext, context_kinds, plain_context
from oxygen_ros.models.registry import DTYPES, LoadOptions
from oxygen_ros.models.resize_torch import resize_with_pad_torch
from oxygen_ros.models.text_tokenizers import load_tokenizer
from oxygen_ros.models.tokenizer import WordTokenizer, numbered_tokenizer
from oxygen_ros.perception.resize import resize_with_pad

logger = logging.getLogger(__name__)

TASKS = ('speech', 'answer', 'memory')


class PrefixMask(str, enum.Enum):
    """Who sees whom in the prefix."""

    BIDIRECTIONAL = 'bidirectional'      # all see each other: how the public weights were trained
    CAUSAL_LANGUAGE = 'causal_language'  # images see images only, text what is before it: OxyGen's form


class Resize(str, enum.Enum):
    """How pictures are brought to the model's size."""

    PILLOW = 'pillow'  # averages over the covered area: openpi's serving transform
    TORCH = 'torch'    # takes the nearest four pixels: LeRobot's


class Pi05Model(Pi0Adapter):
    """
    Adapter of the pi05 family; implements `VLAModel`.

    :param config: parsed `config/models/pi05_*.yaml`.
    :param tokenizer: instead of the checkpoint's. :param weights: file, instead of `model.safetensors` there.
    """

    def __init__(self, config: Mapping, options: LoadOptions, tokenizer: TextTokenizer | None = None,
                 weights: Path | None = None) -> None:
        checkpoint, random = options.checkpoint, options.checkpoint is None
        # Actions that the weights were trained to find fixed, of real-time chunking; 0: they were not.
        self.longest_trained_delay = 0 if random else check_config(checkpoint, config)
        self.tokenizer = tokenizer or _tokenizer(config, checkpoint)
        self.prefix_mask = _choice(PrefixMask, config, 'prefix_mask', PrefixMask.BIDIRECTIONAL)
        lerobot = not random and (checkpoint / PREPROCESSOR).is_file()
        self._resize = _choice(Resize, config, 'resize', Resize.TORCH if lerobot else Resize.PILLOW)
        self._prompt = PromptEncoder(self.tokenizer, config['prompt'], config['prompt_tokens'], config['bos'])
        # The prompt of the high level tells no state.
        self._subtask_prompt = PromptEncoder(self.tokenizer, config.get('subtask_prompt', ''), config['prompt_tokens'],
                                             config['bos'])
        self._tasks = {task: config['tasks'][task] for task in TASKS}
        # Before the weights, which take long to load.
        statistics = None if random else read_statistics(checkpoint, config.get('asset', ''))
        network = network_config(config)
        name = config.get('name', 'pi05')
        stop = frozenset(config['stop_tokens'])
        self.spec = ModelSpec(
            name=name, weights=f'random, seed {options.seed}' if random else str(weights or checkpoint),
            random_weights=random, layers=network.decoder.depth, kv_heads=network.decoder.kv_heads,
            head_dim=network.decoder.head_dim, vocabulary=network.vocabulary,
            prefix_tokens=network.positions - BRANCH_POSITIONS, branch_tokens=BRANCH_POSITIONS,
            horizon=network.horizon, action_dim=network.action_dim, action_period=config['action_period'],
            cameras=tuple(config['cameras']), denoise_steps=config['denoise_steps'], stop_tokens=stop,
            suppressed_tokens=tuple(token for token in range(network.vocabulary)
                                    if token not in stop and not self.tokenizer.token_bytes(token)),
            dtype=options.dtype, device=options.device, frame_extras=network.frame_extras(options.dtype),
            # Texts of random weights mean nothing anyway, but take their time.
            text_head_trained=random or config['text_head_trained'],
            has_subtasks=bool(config.get('subtask_prompt')), context=context_kinds(config),
            first_action_offset=config.get('first_action_offset', 0), statistics=statistics)
        options.admit(self.spec)
        self.network = _load_network(name, network, options, weights)

    def prefill(self, inputs: PolicyInput, instruction: str, cache: UnifiedKVCache, frame: int) -> None:
        """Write the prefix of an observation into a frame slot; see `VLAModel.prefill`."""
        self._prefill(self._prompt, inputs, instruction, cache, frame)

    def prefill_subtask(self, inputs: PolicyInput, task: str, cache: UnifiedKVCache, frame: int) -> None:
        """Write the prefix behind which the model says what to do next; see `VLAModel.prefill_subtask`."""
        self._prefill(self._subtask_prompt, inputs, task, cache, frame)

    def _prefill(self, prompt: PromptEncoder, inputs: PolicyInput, text: str, cache: UnifiedKVCache, frame: int,
                 ) -> None:
        tokens = torch.tensor(prompt.encode(text, inputs.state), device=self.spec.device)
        self.network.prefill(self.pixels(inputs.observation.images), tokens, cache, frame,
                             self.prefix_mask is PrefixMask.CAUSAL_LANGUAGE)

    def pixels(self, images: Mapping[str, np.ndarray]) -> torch.Tensor:
        """Return the pictures of the spec's cameras that are present: [cameras, 3, image, image] in [-1, 1]."""
        side = self.network.config.vision.image
        given = [images[name] for name in self.spec.cameras if name in images]
        if not given:
            return torch.zeros((0, 3, side, side), device=self.spec.device)
        if self._resize is Resize.TORCH:
            pixels = torch.stack([resize_with_pad_torch(image, side, side) for image in given]).to(self.spec.device)
        else:
            resized = np.stack([resize_with_pad(image, side, side) for image in given])
            pixels = torch.from_numpy(resized).to(self.spec.device).float() / 255
        return pixels.permute(0, 3, 1, 2) * 2 - 1

    def branch_prompt(self, task: str, text: str, context: PromptContext = NO_CONTEXT) -> list[int]:
        """Return the prompt of a text task; see `VLAModel.branch_prompt`. Empty: the text goes on from the prefix."""
        prompt = '' if task == 'subtask' else self._tasks[task].replace('{text}', text)
        return self.tokenizer.encode(plain_context(context) + prompt) if prompt else []


def load(config: Mapping, options: LoadOptions) -> Pi05Model:
    """Return the model of a parsed model file; see `registry.load_model`."""
    model = Pi05Model(config, options)
    needed = config.get('statistics', 'checkpoint')
    if needed not in ('checkpoint', 'robot'):
        raise ConfigError(f'statistics is {needed!r}: choose checkpoint or robot (those of the robot file)')
    if options.checkpoint is not None and model.spec.statistics is None and needed == 'checkpoint':
        raise ConfigError(f'checkpoint {str(options.checkpoint)!r} has no statistics (assets/*/norm_stats.json or '
                          f'{PREPROCESSOR}), without which its actions have no physical meaning: copy them there, or '
                          'set `statistics: robot` in the model file')
    return model


def _load_network(name: str, config: Pi0Config, options: LoadOptions, weights: Path | None) -> Pi0Network:
    """Build the network without memory, check that it fits, then fill it once."""
    with torch.device('meta'):
        network = Pi0Network(config)
    rules = {choice: dtype_rule(dtype) for choice, dtype in DTYPES.items()}
    chosen = next(choice for choice, dtype in DTYPES.items() if dtype is options.dtype)
    budget = options.memory_budget_mib
    require_memory(name, network, rules, chosen, options.device, None if budget is None else int(budget * 2**20))
    if options.checkpoint is None:
        allocate(network, rules[chosen], options.device)
        initialise(network, options.seed)
    else:
        file = weights or weights_file(options.checkpoint)
        load_strict(network, file, sources(config), unused=UNUSED, prefix=file_prefix(file), dtype=rules[chosen],
                    device=options.device, progress=options.progress or LogProgress(f'loading {file}'))
    return network.to(options.device).eval()  # the parameters are there already: this moves the tables of positions


def _tokenizer(config: Mapping, checkpoint: Path | None) -> TextTokenizer:
    if config.get('tokenizer') == 'numbered':
        return numbered_tokenizer(config['vocabulary'])
    if config.get('tokenizer'):
        return load_tokenizer(Path(config['tokenizer']).expanduser())
    if checkpoint is None:
        return WordTokenizer([], [])  # bytes: with random weights nothing has a meaning
    return load_tokenizer(checkpoint)


def _choice(kind: type[enum.Enum], config: Mapping, key: str, default: enum.Enum) -> enum.Enum:
    value = config.get(key, default.value)
    choices = [member.value for member in kind]
    if value not in choices:
        raise ConfigError(f'{key} is {value!r}: choose one of {choices}')
    return kind(value)
