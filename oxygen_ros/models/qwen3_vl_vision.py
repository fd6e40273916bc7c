"""Vision tower and image preprocessing of Qwen3-VL: those of transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import nn

from oxygen_ros.errors import ConfigError

try:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel
except ImportError as error:
    raise ConfigError(f'the installed transformers lacks what Qwen3-VL needs ({error}): install version 5.23 or '
                      'later') from error

# Keys of a checkpoint's vision_config that say what the tower is; the others are defaults of a library's version.
_KEYS = ('depth', 'hidden_size', 'hidden_act', 'intermediate_size', 'num_heads', 'in_channels', 'patch_size',
         'spatial_merge_size', 'temporal_patch_size', 'out_hidden_size', 'num_position_embeddings',
         'deepstack_visual_indexes')


def vision_tower(config: Mapping) -> nn.Module:
    """Return the tower of a checkpoint's vision_config; may be called on the meta device."""
    return Qwen3VLVisionModel(Qwen3VLVisionConfig(**{key: config[key] for key in _KEYS if key in config}))


def fill_buffers(tower: nn.Module) -> None:
    """Compute what no checkpoint holds, of a tower that was built on the meta device."""
    tower.rotary_pos_emb = type(tower.rotary_pos_emb)(tower.config)
    left = [name for name, buffer in tower.named_buffers() if buffer.is_meta]
    if left:
        raise TypeError(f'the vision tower of this version of transformers has unknown buffers {left}: use another '
                        'version')


def see(tower: nn.Module, pixels: torch.Tensor, grids: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """
    Return the image tokens [tokens, width], and the features that deepstack adds, of the same shape, layer by layer.

    :param pixels: [patches, numbers per patch]. :param grids: int64 [images, 3], patches in time, height and width.
    """
    seen = tower(pixels.to(next(tower.parameters()).dtype), grid_thw=grids)
    return seen.pooler_output, seen.deepstack_features


class ImageProcessor:
    """
    Resizes, normalises and cuts pictures into patches, with Pillow, as the models were trained.

    :param config: preprocessor_config.json. :param most_tokens: of a picture; larger ones are made smaller.
    """

    def __init__(self, config: Mapping, most_tokens: int) -> None:
        self._merge = config['merge_size']
        self._area = (config['patch_size'] * self._merge) ** 2
        size = dict(config['size'])
        size['longest_edge'] = min(size['longest_edge'], most_tokens * self._area)
        size['shortest_edge'] = min(size['shortest_edge'], size['longest_edge'])
        known = ('do_convert_rgb', 'do_normalize', 'do_rescale', 'do_resize', 'image_mean', 'image_std', 'merge_size',
                 'patch_size', 'resample', 'rescale_factor', 'temporal_patch_size')
        self._processor = Qwen2VLImageProcessorPil(size=size, **{key: config[key] for key in known if key in config})

    def __call__(self, images: Sequence[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the pixels and grids that `see` takes, of pictures uint8 [height, width, 3]."""
        result = self._processor(images=list(images), return_tensors='pt')
        return result['pixel_values'], result['image_grid_thw']

    def token_grids(self, grids: torch.Tensor) -> list[tuple[int, int]]:
        """Return rows and columns of image tokens of each picture."""
        return [(int(height) // self._merge, int(width) // self._merge) for _, height, width in grids]
