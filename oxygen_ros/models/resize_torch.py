"""Brings pictures to the size of the model the way LeRobot does; the usual way is perception/resize.py."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F


def resize_with_pad_torch(image: np.ndarray, height: int, width: int) -> torch.Tensor:
    """
    Fit a picture into height x width: aspect kept, centred, the rest black.

    Bilinear from the nearest four pixels, without averaging when it shrinks (LeRobot, `resize_with_pad_torch`).

    :param image: uint8 [any height, any width, 3].
    :return: float32 [height, width, 3] in [0, 1].
    """
    old_height, old_width = image.shape[:2]
    ratio = max(old_width / width, old_height / height)
    size = max(1, int(old_height / ratio)), max(1, int(old_width / ratio))
    pixels = torch.tensor(image).permute(2, 0, 1).unsqueeze(0).float() / 255
    resized = F.interpolate(pixels, size, mode='bilinear', align_corners=False)[0].permute(1, 2, 0).clamp(0, 1)
    padded = torch.zeros(height, width, 3)
    top, left = (height - size[0]) // 2, (width - size[1]) // 2
    padded[top:top + size[0], left:left + size[1]] = resized
    return padded
