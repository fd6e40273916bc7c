"""The prompt of StarVLA: pictures, then the instruction in the words of the checkpoint, in one turn of the user."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from oxygen_ros.models.byte_tokenizer import ByteTokenizer
from oxygen_ros.models.checkpoint_statistics import read_json
from oxygen_ros.models.interface import PolicyInput
from oxygen_ros.models.qwen3_vl_prefix import Prefix
from oxygen_ros.models.qwen3_vl_vision import ImageProcessor
from oxygen_ros.models.starvla_config import Framework, StarVlaConfig

logger = logging.getLogger(__name__)

LONGEST_TOKEN = 32  # characters per token that are looked at
STATE_BINS = 256

START = '<|im_start|>user\n'
VIEW = '<|vision_start|><|image_pad|><|vision_end|>'
END = '<|im_end|>\n<|im_start|>assistant\n'
QUERY = '\N{LEFT-POINTING MAGNIFYING GLASS}'  # StarVLA's placeholder of an action


@dataclass(frozen=True)
class PromptSettings:
    """
    :param cameras: in the order of the prompt. :param image_tokens, prompt_tokens: most of a picture, and of the rest.
    :param client_image_size: (width, height) that pictures are brought to first; None leaves them as they are.
    :param has_state: whether the model is given a state, as text or otherwise.
    """

    cameras: tuple[str, ...]
    image_tokens: int
    prompt_tokens: int
    client_image_size: tuple[int, int] | None
    has_state: bool

    @property
    def prefix_tokens(self) -> int:
        """Most tokens of a prefix."""
        return len(self.cameras) * self.image_tokens + self.prompt_tokens


class Prompt:
    """
    Makes prefixes.

    :param base: directory of the base model. :param image_token: the id that stands for a picture.
    """

    def __init__(self, config: StarVlaConfig, settings: PromptSettings, base: Path, tokenizer: ByteTokenizer,
                 image_token: int) -> None:
        self._config, self._settings, self._tokenizer, self._image_token = config, settings, tokenizer, image_token
        processor: Mapping = read_json(base / 'preprocessor_config.json', 'preprocessor of the base model')
        self._images = ImageProcessor(processor, settings.image_tokens)
        self._cut = ''  # the last instruction that was too long

    def prefix(self, inputs: PolicyInput, instruction: str) -> Prefix:
        """
        Return what the decoder reads; absent cameras are left out, and an instruction that is too long is cut.

        :raises ValueError: there is no room for an instruction at all.
        """
        given = inputs.observation.images
        images = [self.resized(given[name]) for name in self._settings.cameras if name in given]
        pixels, grids = self._images(images) if images else (None, None)
        sizes = self._images.token_grids(grids) if images else []
        start = self._tokenizer.encode_markup(START + VIEW * len(images))
        end = self._tokenizer.encode_markup(END)
        room = self._settings.prompt_tokens - len(start) - len(end) + len(images)
        return Prefix.of([*start, *self._words(instruction, self._suffix(inputs.state), room), *end],
                         self._image_token, sizes, pixels, grids)

    def resized(self, image: np.ndarray) -> np.ndarray:
        """Return a picture uint8 [height, width, 3] as StarVLA's client, then its server bring it to size."""
        for size, resample in ((self._settings.client_image_size, Image.Resampling.BILINEAR),
                               (self._config.image_size, Image.Resampling.BICUBIC)):
            if size is not None and image.shape[1::-1] != size:
                image = np.asarray(Image.fromarray(image).resize(size, resample))
        return image

    def _suffix(self, state: np.ndarray) -> str:
        """Return what stands behind the instruction: the state in bins, and the placeholders of OFT."""
        suffix = ''
        if self._settings.has_state and self._config.framework.state_as_text:
            bins = np.digitize(state, np.linspace(-1, 1, STATE_BINS + 1)[:-1]) - 1
            suffix = f' [STATE] {" ".join(map(str, bins))} [ACTION]'
        if self._config.framework is Framework.OFT:
            horizon = self._config.horizon
            suffix += f' Please predict the next {horizon} robot actions: <action>{QUERY * horizon}<action>.'
        return suffix

    def _words(self, instruction: str, suffix: str, room: int) -> list[int]:
        """Return the tokens of the instruction in its prompt; it is cut, what is around it is not."""
        most, whole = self._settings.prompt_tokens, instruction
        instruction = instruction[:LONGEST_TOKEN * most]
        while True:
            tokens = self._tokenizer.encode(self._config.prompt.replace('{instruction}', instruction + suffix))
            if len(tokens) <= room:
                if instruction != whole and self._cut != whole:
                    self._cut = whole
                    logger.warning('the instruction of %d characters is cut to %d to fit into prompt_tokens %d',
                                   len(whole), len(instruction), most)
                return tokens
            if not instruction:
                raise ValueError(f'prompt_tokens {most} leaves no room for the instruction: raise it in the model file')
            kept = self._tokenizer.encode(instruction)[:room - len(tokens)]
            instruction = b''.join(map(self._tokenizer.token_bytes, kept)).decode('utf-8', 'ignore')
