"""
Decodes compressed camera pictures to uint8 [height, width, 3], RGB. No ROS here.

JPEG, PNG and WebP; the bytes decide which. The pixels are Pillow's. Values of 16 bits are scaled to 8 (65535 becomes
255). Alpha is dropped, not blended.
"""

from __future__ import annotations

import io
import struct

import cv2
import numpy as np
from PIL import Image as PilImage
from PIL import UnidentifiedImageError

from oxygen_ros.perception.images import MAX_PIXELS, ImageError, ImageFault, check_pixels, to_8_bit

# Segments of a JPEG (ITU-T T.81, table B.1): what tells its size, with Huffman codes, and what may come before.
JPEG_SIZES = frozenset({0xc0, 0xc1, 0xc2})
JPEG_HEADS = frozenset({0xc4, 0xdb, 0xdd, 0xfe, *range(0xe0, 0xf0)})
MOST_SCANS = 100  # of a JPEG: a progressive one has about ten; one takes 20 bytes, and time for the whole picture

# OpenCV 4.11 and newer write RGB at once; 0 for older ones.
_READ_RGB = getattr(cv2, 'IMREAD_COLOR_RGB', 0)
if _READ_RGB:
    _READ_RGB |= cv2.IMREAD_IGNORE_ORIENTATION


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
    try:
        if data[:2] == b'\xff\xd8' and (scans := data.count(b'\xff\xda')) > MOST_SCANS:
            raise ImageError(ImageFault.TOO_LARGE, f'{scans} scans are more than {MOST_SCANS}')
        size = _jpeg_size(data)
        if size is not None and _has_end(data):
            check_pixels(*size, max_pixels)
            return _decode_whole_jpeg(data)
        if data[:4] == b'RIFF':  # Pillow's decoder of WebP allocates on opening
            check_pixels(*_webp_size(data), max_pixels)
        with PilImage.open(io.BytesIO(data), formats=('JPEG', 'PNG', 'WEBP')) as picture:
            check_pixels(*picture.size, max_pixels)
            picture.load()
            if picture.mode.startswith('I'):  # grey with 16 bits
                grey = np.asarray(picture.convert('I')).clip(0, 65535).astype(np.uint16)
                return cv2.cvtColor(to_8_bit(grey), cv2.COLOR_GRAY2RGB)
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


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    """
    Return width and height of the header of a JPEG in grey or RGB.

    :return: None for everything else, headers that are damaged or unusual included: Pillow looks at these.
    """
    position = 2
    while data[:2] == b'\xff\xd8' and len(data) >= position + 10 and data[position] == 0xff:
        marker, length = struct.unpack_from('>BH', data, position + 1)
        if marker in JPEG_SIZES:
            depth, height, width, channels = struct.unpack_from('>BHHB', data, position + 4)
            return (width, height) if depth == 8 and channels in (1, 3) else None
        if marker not in JPEG_HEADS:
            break
        position += 2 + length
    return None


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
