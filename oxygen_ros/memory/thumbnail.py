"""Small pictures that are kept with notes."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

QUALITY = 70  # of the JPEG: a picture of 128 x 128 takes about 3 kB


def thumbnail(image: np.ndarray, side: int) -> bytes:
    """
    Return a picture as JPEG, made smaller if need be.

    :param image: uint8 [height, width, 3], RGB. :param side: most pixels of its longer side.
    """
    picture = Image.fromarray(image)
    picture.thumbnail((side, side))
    stream = io.BytesIO()
    picture.save(stream, 'JPEG', quality=QUALITY)
    return stream.getvalue()
