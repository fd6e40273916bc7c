"""Brings pictures to the size of the model without changing their aspect ratio. No ROS here."""

from __future__ import annotations

import numpy as np
from PIL import Image as PilImage


def resize_with_pad(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """
    Fit a picture into height x width: aspect kept, centred, the rest black.

    The filter is Pillow's bilinear one, which averages over the covered area when it shrinks, and sizes round down: the
    transform that openpi serves pi-0.5 with, equal to it bit by bit. A picture of the right size comes back as it is.

    :param image: uint8 [any height, any width, 3].
    :return: uint8 [height, width, 3].
    """
    old_height, old_width = image.shape[:2]
    if (old_height, old_width) == (height, width):
        return image
    ratio = max(old_width / width, old_height / height)
    new_height = max(1, int(old_height / ratio))
    new_width = max(1, int(old_width / ratio))
    resized = PilImage.fromarray(image).resize((new_width, new_height), PilImage.Resampling.BILINEAR)
    if (new_height, new_width) == (height, width):
        return np.asarray(resized)
    padded = np.zeros((height, width, 3), np.uint8)
    top, left = (height - new_height) // 2, (width - new_width) // 2
    padded[top:top + new_height, left:left + new_width] = resized
    return padded
