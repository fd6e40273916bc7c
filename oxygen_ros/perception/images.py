"""
Decodes raw camera pictures to uint8 [height, width, 3], RGB. No ROS here; compressed ones: `perception.compressed`.

Nodes may have cv_bridge convert raw pictures instead, as far as it gives the same pixels. Encoding names are those of
sensor_msgs/image_encodings plus 'uyvy' and 'yuyv', which drivers write; letter case does not matter. Values of 16 bits
are scaled to 8 (65535 becomes 255). Alpha is dropped, not blended.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import cv2
import numpy as np

# 8K video (7680 x 4320) still passes. Larger pictures are refused before anything of their size is allocated.
MAX_PIXELS = 2**25


class ImageFault(enum.Enum):
    """Why a picture was refused."""

    EMPTY = 'empty'                        # no bytes, or zero height or width
    UNKNOWN_ENCODING = 'unknown_encoding'  # not a name we know
    CHANNEL_ORDER = 'channel_order'        # 8UC3 or 8UC4: the name leaves open where red is
    DEPTH = 'depth'                        # distances, not colours: compressedDepth, or floating point numbers
    BAD_SIZE = 'bad_size'                  # height, width or step do not go with the encoding
    TOO_LARGE = 'too_large'                # more pixels than allowed
    TOO_SHORT = 'too_short'                # fewer bytes than height, width and step promise
    UNKNOWN_FORMAT = 'unknown_format'      # compressed bytes are neither JPEG, PNG nor WebP
    TRUNCATED = 'truncated'                # the end of a compressed picture is missing
    CORRUPT = 'corrupt'                    # compressed bytes that do not decode
    TOO_SLOW = 'too_slow'                  # still not decoded after a time in which no robot can wait


class ImageError(ValueError):
    """A picture cannot be used. The text names the sizes or the encoding."""

    def __init__(self, fault: ImageFault, text: str):
        super().__init__(text)
        self.fault = fault


@dataclass(frozen=True)
class _Encoding:
    """
    Layout of one encoding.

    :param samples: samples per pixel in a row (2 for the packed 4:2:2 formats).
    :param code: conversion of OpenCV to RGB; None if the samples are RGB already.
    :param wide: True for samples of 16 bits.
    :param even: width (and height, if planar) must be even.
    :param planar: a half-height plane of interleaved colour follows the brightness plane.
    :param smallest: smallest height and width.
    """

    samples: int
    code: int | None
    wide: bool = False
    even: bool = False
    planar: bool = False
    smallest: int = 1


_ENCODINGS = {
    'rgb8': _Encoding(3, None),
    'bgr8': _Encoding(3, cv2.COLOR_BGR2RGB),
    'rgba8': _Encoding(4, cv2.COLOR_RGBA2RGB),
    'bgra8': _Encoding(4, cv2.COLOR_BGRA2RGB),
    'rgb16': _Encoding(3, None, wide=True),
    'bgr16': _Encoding(3, cv2.COLOR_BGR2RGB, wide=True),
    'rgba16': _Encoding(4, cv2.COLOR_RGBA2RGB, wide=True),
    'bgra16': _Encoding(4, cv2.COLOR_BGRA2RGB, wide=True),
    'mono8': _Encoding(1, cv2.COLOR_GRAY2RGB),
    '8uc1': _Encoding(1, cv2.COLOR_GRAY2RGB),
    'mono16': _Encoding(1, cv2.COLOR_GRAY2RGB, wide=True),
    '16uc1': _Encoding(1, cv2.COLOR_GRAY2RGB, wide=True),
    **dict.fromkeys(('yuv422', 'uyvy'), _Encoding(2, cv2.COLOR_YUV2RGB_UYVY, even=True)),
    **dict.fromkeys(('yuv422_yuy2', 'yuyv', 'yuy2'), _Encoding(2, cv2.COLOR_YUV2RGB_YUY2, even=True)),
    'nv12': _Encoding(1, cv2.COLOR_YUV2RGB_NV12, even=True, planar=True),
    'nv21': _Encoding(1, cv2.COLOR_YUV2RGB_NV21, even=True, planar=True),
}
for _pattern in ('rggb', 'bggr', 'gbrg', 'grbg'):
    _code = getattr(cv2, f'COLOR_Bayer{_pattern.upper()}2RGB')
    _ENCODINGS[f'bayer_{_pattern}8'] = _Encoding(1, _code, smallest=3)  # OpenCV interpolates from 3 x 3 on
    _ENCODINGS[f'bayer_{_pattern}16'] = _Encoding(1, _code, wide=True, smallest=3)

_CHANNEL_ORDERS = {('8uc3', 'rgb'): 'rgb8', ('8uc3', 'bgr'): 'bgr8', ('8uc4', 'rgb'): 'rgba8', ('8uc4', 'bgr'): 'bgra8'}


def check_raw(encoding: str, height: int, width: int, step: int, size: int, *,
              max_pixels: int = MAX_PIXELS, channel_order: str = '') -> tuple[_Encoding, int]:
    """
    Check the fields of a raw picture without touching its data; cheap enough for every message.

    :param step: bytes per row with padding; 0 is taken for rows without padding if `size` fits exactly.
    :param size: number of bytes of the data.
    :param channel_order: 'rgb' or 'bgr' for 8UC3 and 8UC4, '' refuses these.
    :return: what `decode_raw` needs: the encoding and the bytes per row.
    :raises ImageError: with the reason.
    """
    name = encoding.strip().lower()
    if name in ('8uc3', '8uc4'):
        if not channel_order:
            raise ImageError(ImageFault.CHANNEL_ORDER, f'encoding {encoding!r} does not say whether red comes first: '
                             'let the driver publish rgb8 or bgr8, or set the channel order')
        name = _CHANNEL_ORDERS[name, channel_order]
    layout = _ENCODINGS.get(name)
    if layout is None:
        if name.startswith(('32fc', '64fc')):
            raise ImageError(ImageFault.DEPTH, f'encoding {encoding!r} holds numbers such as distances, and no model '
                             'here takes these: give the colour topic of the camera')
        raise ImageError(ImageFault.UNKNOWN_ENCODING, f'unknown encoding {encoding!r}')
    check_pixels(width, height, max_pixels, f'{encoding} picture')
    if min(height, width) < layout.smallest:
        raise ImageError(ImageFault.BAD_SIZE, f'{encoding} picture of {width}x{height} is smaller than '
                         f'{layout.smallest}x{layout.smallest}')
    if layout.even and (width % 2 or (layout.planar and height % 2)):
        raise ImageError(ImageFault.BAD_SIZE, f'{encoding} picture of {width}x{height} must have an even size')
    row = width * layout.samples * (2 if layout.wide else 1)
    rows = height * 3 // 2 if layout.planar else height
    if step == 0 and size == rows * row:
        step = row
    if step < row:
        raise ImageError(ImageFault.BAD_SIZE, f'{encoding} picture of {width}x{height} has step {step}, but a row '
                         f'takes {row} bytes')
    needed = step * (rows - 1) + row  # some drivers leave out the padding of the last row
    if size < needed:
        raise ImageError(ImageFault.TOO_SHORT, f'{encoding} picture of {width}x{height} with step {step} takes '
                         f'{step * rows} bytes, got {size}')
    return layout, step


def decode_raw(encoding: str, height: int, width: int, step: int, is_bigendian: bool, data: bytes | memoryview, *,
               max_pixels: int = MAX_PIXELS, channel_order: str = '') -> np.ndarray:
    """
    Decode the fields of a sensor_msgs/Image to uint8 [height, width, 3], RGB.

    The result may share the memory of `data` and then is read-only. YUV is BT.601, limited range.

    :param data: bytes, or anything with the buffer interface.
    :raises ImageError: with the reason; see `check_raw`.
    """
    view = memoryview(data).cast('B')
    layout, step = check_raw(encoding, height, width, step, len(view),
                             max_pixels=max_pixels, channel_order=channel_order)
    sample = np.dtype('u1') if not layout.wide else np.dtype('>u2' if is_bigendian else '<u2')
    rows = height * 3 // 2 if layout.planar else height
    pixels = np.ndarray((rows, width, layout.samples), sample, view,
                        strides=(step, layout.samples * sample.itemsize, sample.itemsize))
    if layout.wide:
        pixels = to_8_bit(pixels)
    if layout.samples == 1:
        pixels = pixels[..., 0]
    if layout.code is None:
        pixels = np.ascontiguousarray(pixels)
        pixels.flags.writeable = False
        return pixels
    return cv2.cvtColor(np.ascontiguousarray(pixels), layout.code)


def check_pixels(width: int, height: int, max_pixels: int, what: str = 'a picture') -> None:
    """Refuse a declared size before anything of that size is allocated."""
    if height < 1 or width < 1:
        raise ImageError(ImageFault.EMPTY, f'{what} of {width}x{height} has no pixels')
    if height * width > max_pixels:
        raise ImageError(ImageFault.TOO_LARGE, f'{what} of {width}x{height} has more than {max_pixels} pixels')


def to_8_bit(samples: np.ndarray) -> np.ndarray:
    """Scale uint16 samples to uint8, rounded: 65535 becomes 255."""
    return ((samples.astype(np.uint32) + 128) // 257).astype(np.uint8)
