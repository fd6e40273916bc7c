"""
Uses cv_bridge for raw pictures, where it is installed and gives the pixels that `perception.images` gives.

Which encodings these are depends on its version, so it is tried out, in a process of its own: a cv_bridge that was
built for another NumPy ends the process that imports it.
"""

from __future__ import annotations

import array
import importlib.util
import json
import subprocess
import sys

import numpy as np
from sensor_msgs.msg import Image

from oxygen_ros.perception.images import ImageError, ImageFault, decode_raw

TRIED = ('rgb8', 'bgr8', 'rgba8', 'bgra8', 'mono8', 'mono16', 'yuv422', 'yuv422_yuy2',
         *(f'bayer_{pattern}8' for pattern in ('rggb', 'bggr', 'gbrg', 'grbg')))
BYTES_PER_PIXEL = {'rgb8': 3, 'bgr8': 3, 'rgba8': 4, 'bgra8': 4, 'mono16': 2, 'yuv422': 2, 'yuv422_yuy2': 2}
TRIAL_SECONDS = 30.0


class PixelBridge:
    """
    Converts pictures with cv_bridge. Threads: any.

    :param encodings: that it is used for.
    """

    def __init__(self, encodings: frozenset[str]) -> None:
        from cv_bridge import CvBridge
        self.encodings = encodings
        self._bridge = CvBridge()

    @classmethod
    def find(cls) -> PixelBridge | None:
        """Return a bridge for the encodings of which it gives the same pixels; None without cv_bridge, or any such."""
        if importlib.util.find_spec('cv_bridge') is None:
            return None
        try:
            trial = subprocess.run([sys.executable, '-m', __name__], capture_output=True, timeout=TRIAL_SECONDS,
                                   check=True)
            encodings = frozenset(json.loads(trial.stdout))
        except (OSError, subprocess.SubprocessError, ValueError):
            return None
        return cls(encodings) if encodings else None

    def takes(self, image: Image) -> bool:
        """Tell whether a picture that `check_raw` has let pass is converted here; not with padded rows, see below."""
        return (image.encoding in self.encodings and not image.is_bigendian
                and image.step == image.width * BYTES_PER_PIXEL.get(image.encoding, 1)
                and len(image.data) == image.step * image.height)

    def decode(self, image: Image) -> np.ndarray:
        """
        Return uint8 [height, width, 3], RGB.

        :raises ImageError: cv_bridge refuses the picture.
        """
        try:
            return np.ascontiguousarray(self._bridge.imgmsg_to_cv2(image, 'rgb8'), dtype=np.uint8)
        except Exception as error:  # it raises errors of its own, of OpenCV and of NumPy
            raise ImageError(ImageFault.CORRUPT, f'cv_bridge refuses the {image.encoding} picture of '
                             f'{image.width}x{image.height}: {error}') from None


def same_pixels() -> list[str]:
    """Return the encodings of which cv_bridge gives the pixels of `decode_raw`. Some versions shear padded rows."""
    bridge = PixelBridge(frozenset(TRIED))
    return [encoding for encoding in TRIED if _is_same(bridge, encoding)]


def _is_same(bridge: PixelBridge, encoding: str) -> bool:
    height, width = 12, 16
    step = width * BYTES_PER_PIXEL.get(encoding, 1)
    data = np.random.default_rng(0).integers(0, 256, height * step, dtype=np.uint8)
    image = Image(height=height, width=width, encoding=encoding, step=step, data=array.array('B', data.tobytes()))
    try:
        return np.array_equal(bridge.decode(image), decode_raw(encoding, height, width, step, False, image.data))
    except ImageError:
        return False


if __name__ == '__main__':
    print(json.dumps(same_pixels()))
