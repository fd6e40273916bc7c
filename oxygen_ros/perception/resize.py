"""Brings pictures to the size of the model without changing their aspect ratio. No ROS here."""

from __future__ import annotations

import ctypes
import functools
import math
from pathlib import Path

import numpy as np
from PIL import Image as PilImage

FRACTION_BITS = 22  # of Pillow's weights
MOST_PIXELS = 2**14  # in one direction: with more, the rounding of the weights could add up to a grey level


def resize_with_pad(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """
    Fit a picture into height x width: aspect kept, centred, the rest black.

    The filter is Pillow's bilinear one, which averages over the covered area when it shrinks, along the rows before
    along the columns, and sizes round down: the transform that openpi serves pi-0.5 with, equal to it bit by bit. A
    picture of the right size comes back as it is.

    :param image: uint8 [any height, any width, 3].
    :return: uint8 [height, width, 3].
    """
    old_height, old_width = image.shape[:2]
    if (old_height, old_width) == (height, width):
        return image
    ratio = max(old_width / width, old_height / height)
    new_height = max(1, int(old_height / ratio))
    new_width = max(1, int(old_width / ratio))
    padded = (np.empty if (new_height, new_width) == (height, width) else np.zeros)((height, width, 3), np.uint8)
    top, left = (height - new_height) // 2, (width - new_width) // 2
    resize_into(image, padded[top:top + new_height, left:left + new_width])
    return padded


def resize_into(image: np.ndarray, target: np.ndarray, plain: bool = False) -> None:
    """
    Resize a picture as Pillow's bilinear filter did up to version 12, quicker where src/resize.c was built.

    :param image: uint8 [any height, any width, 3].
    :param target: uint8 [height, width, 3], rows may be apart; it is overwritten.
    :param plain: use only what every processor can do, for tests.
    """
    height, width, channels = target.shape
    if _LIBRARY is None or max(*image.shape, *target.shape) > MOST_PIXELS:
        # Rows first: from version 13 on Pillow does tall pictures, and some others, the other way round.
        picture = PilImage.fromarray(image).resize((width, image.shape[0]), PilImage.Resampling.BILINEAR)
        target[:] = picture.resize((width, height), PilImage.Resampling.BILINEAR)
        return
    if not image.dtype == target.dtype == np.uint8 or not image.shape[2] == channels == 3 \
            or target.strides[1:] != (3, 1) or 0 in image.shape or 0 in target.shape:
        raise ValueError(f'pictures of {image.dtype} {image.shape} and {target.dtype} {target.shape}, strides '
                         f'{target.strides}, are not uint8 [height, width, 3]')
    image = np.ascontiguousarray(image)
    if _LIBRARY.oxygen_ros_resize(
            image.ctypes.data, image.shape[0], image.shape[1], target.ctypes.data, target.strides[0],
            _Weights.between(image.shape[0], height), _Weights.between(image.shape[1], width), plain):
        raise MemoryError('no memory to resize a picture')


class _Weights(ctypes.Structure):
    """Struct weights of src/resize.c, the numbers of Pillow's `precompute_coeffs` and `normalize_coeffs_8bpc`."""

    _fields_ = [('size', ctypes.c_int32), ('taps', ctypes.c_int32),
                *((name, ctypes.c_void_p) for name in ('first', 'count', 'weight'))]

    @classmethod
    @functools.lru_cache(maxsize=64)
    def between(cls, old: int, new: int) -> _Weights:
        """Return what `new` pixels in a row are made of, out of `old` ones."""
        scale = old / new
        reach = max(scale, 1.0)  # of the filter, in source pixels to both sides
        taps = 2 * math.ceil(reach) + 1
        first, count = np.zeros(new, np.int32), np.zeros(new, np.int32)
        weights = np.zeros((new, taps), np.int32)
        for index in range(new):
            centre = (index + 0.5) * scale
            begin, end = max(0, int(centre - reach + 0.5)), min(old, int(centre + reach + 0.5))
            shares = [max(0.0, 1.0 - abs((pixel - centre + 0.5) * (1.0 / reach))) for pixel in range(begin, end)]
            total = functools.reduce(float.__add__, shares, 0.0)  # in this order, and not as exact as sum() is
            weights[index, :len(shares)] = [int(0.5 + share / total * (1 << FRACTION_BITS)) for share in shares]
            first[index], count[index] = begin, end - begin
        made = cls(new, taps, *(array.ctypes.data for array in (first, count, weights)))
        made.arrays = first, count, weights  # whose memory it refers to
        return made


def _load() -> ctypes.CDLL | None:
    """Return the library; None where the package was not built, as in a bare checkout, or for an unknown system."""
    try:
        library = ctypes.CDLL(str(Path(__file__).parents[1] / 'liboxygen_ros__resize.so'))
    except OSError:
        return None
    pointer = ctypes.POINTER(_Weights)
    library.oxygen_ros_resize.argtypes = (ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p,
                                          ctypes.c_ssize_t, pointer, pointer, ctypes.c_int)
    return library


_LIBRARY = _load()
