"""
Decodes camera pictures to uint8 [height, width, 3], RGB. No ROS here.

Nodes may have cv_bridge convert raw pictures instead, as far as it gives the same pixels. Encoding names are those of
sensor_msgs/image_encodings plus 'uyvy' and 'yuyv', which drivers write; letter case does not matter. Values of 16 bits
are scaled to 8 (65535 becomes 255). Alpha is dropped, not blended.
"""

from __future__ import annotations

import enum
import io
import struct
from dataclasses import dataclass

import cv2
import numpy as np
from PIL import Image as PilImage
from PIL import UnidentifiedImageError

# 8K video (7680 x 4320) still passes. Larger pictures are refused before anything of their size is allocated.
MAX_PIXELS = 2**25

# OpenCV 4.11 and newer write RGB at once; 0 for older ones.
_READ_RGB = getattr(cv2, 'IMREAD_COLOR_RGB', 0)
if _READ_RGB:
    _READ_RGB |= cv2.IMREAD_IGNORE_ORIENTATION


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
    _check_pixels(width, height, max_pixels, f'{encoding} picture')
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
        pixels = _to_8_bit(pixels)
    if layout.samples == 1:
        pixels = pixels[..., 0]
    if layout.code is None:
        pixels = np.ascontiguousarray(pixels)
        pixels.flags.writeable = False
        return pixels
    return cv2.cvtColor(np.ascontiguousarray(pixels), layout.code)


def check_compressed(format_text: str, data: bytes | memoryview) -> None:
    """
    Check the first bytes of a compressed picture; cheap enough for every message.

    :param format_text: CompressedImage.format. Only quoted in errors: its dialects are many, so the bytes decide.
    :raises ImageError: there are no bytes, or they are neither JPEG, PNG nor WebP; or they are compressedDepth.
    """
    head = bytes(memoryview(data).cast('B')[:32])
    if 'compresseddepth' in format_text.lower():
        raise ImageError(ImageFault.DEPTH, f'compressed picture of format {format_text!r} holds distances, and no '
                         'model here takes these: give the colour topic of the camera')
    if not head:
        raise ImageError(ImageFault.EMPTY, f'compressed picture (format {format_text!r}) without bytes')
    webp = head[:4] == b'RIFF' and head[8:12] == b'WEBP'
    if not webp and not head.startswith((b'\xff\xd8\xff', b'\x89PNG\r\n\x1a\n')):
        raise ImageError(ImageFault.UNKNOWN_FORMAT, f'compressed picture (format {format_text!r}) that begins with '
                         f'{head[:4].hex()} is neither JPEG, PNG nor WebP')


def decode_compressed(format_text: str, data: bytes | memoryview, *, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """
    Decode the fields of a sensor_msgs/CompressedImage to uint8 [height, width, 3], RGB.

    :raises ImageError: with the reason. Pictures whose header declares more than `max_pixels` are refused before
        decoding; a picture whose end is missing is refused, never filled up with grey.
    """
    check_compressed(format_text, data)
    data = bytes(data)
    try:
        return _decode_file(data, max_pixels)
    except ImageError as error:
        what = f'compressed picture (format {format_text!r}, {len(data)} bytes)'
        raise ImageError(error.fault, f'{what}: {error}') from None


def _decode_file(data: bytes, max_pixels: int) -> np.ndarray:
    if data[:4] == b'RIFF':  # Pillow's decoder of WebP allocates on opening
        _check_pixels(*_webp_size(data), max_pixels)
    try:
        with PilImage.open(io.BytesIO(data), formats=('JPEG', 'PNG', 'WEBP')) as picture:
            _check_pixels(*picture.size, max_pixels)
            if picture.format == 'JPEG' and picture.mode in ('RGB', 'L') and _has_end(data):
                return _decode_whole_jpeg(data)
            picture.load()
            if picture.mode.startswith('I'):  # grey with 16 bits
                grey = np.asarray(picture.convert('I')).clip(0, 65535).astype(np.uint16)
                return cv2.cvtColor(_to_8_bit(grey), cv2.COLOR_GRAY2RGB)
            return np.asarray(picture.convert('RGB'))
    except ImageError:
        raise
    except (PilImage.DecompressionBombError, PilImage.DecompressionBombWarning) as error:
        raise ImageError(ImageFault.TOO_LARGE, f'it is too large: {error}') from None
    except UnidentifiedImageError:
        raise ImageError(ImageFault.CORRUPT, 'its header is damaged') from None
    except Exception as error:  # decoders raise nearly anything for damaged bytes: OSError, SyntaxError, struct.error
        fault = ImageFault.TRUNCATED if 'truncated' in str(error).lower() else ImageFault.CORRUPT
        raise ImageError(fault, f'it does not decode: {error}') from None


def _has_end(jpeg: bytes) -> bool:
    """Tell whether an end marker follows the last start of a scan (a thumbnail in the header has both of its own)."""
    end = jpeg.rfind(b'\xff\xd9')
    return end >= 0 and jpeg.find(b'\xff\xda', end) < 0


def _decode_whole_jpeg(data: bytes) -> np.ndarray:
    """
    Decode with OpenCV: the same library and pixels as with Pillow in a third of the time.

    Only for pictures with an end: it would fill up the missing rest of others with grey.
    """
    picture = cv2.imdecode(np.frombuffer(data, np.uint8), _READ_RGB or cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    if picture is None:
        raise ImageError(ImageFault.CORRUPT, 'it does not decode')
    return picture if _READ_RGB else cv2.cvtColor(picture, cv2.COLOR_BGR2RGB, dst=picture)


def _check_pixels(width: int, height: int, max_pixels: int, what: str = 'a picture') -> None:
    if height < 1 or width < 1:
        raise ImageError(ImageFault.EMPTY, f'{what} of {width}x{height} has no pixels')
    if height * width > max_pixels:
        raise ImageError(ImageFault.TOO_LARGE, f'{what} of {width}x{height} has more than {max_pixels} pixels')


def _to_8_bit(samples: np.ndarray) -> np.ndarray:
    """Scale uint16 samples to uint8, rounded: 65535 becomes 255."""
    return ((samples.astype(np.uint32) + 128) // 257).astype(np.uint8)


def _webp_size(data: bytes) -> tuple[int, int]:
    """Return width and height of the header of a WebP file (RFC 9649, sections 2.5 to 2.7)."""
    kind = data[12:16]
    try:
        if kind == b'VP8X':
            return 1 + int.from_bytes(data[24:27], 'little'), 1 + int.from_bytes(data[27:30], 'little')
        if kind == b'VP8L':
            bits = struct.unpack_from('<I', data, 21)[0]
            return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
        width, height = struct.unpack_from('<HH', data, 26)
        return width & 0x3FFF, height & 0x3FFF
    except struct.error:
        raise ImageError(ImageFault.TRUNCATED, 'it ends in its header') from None
