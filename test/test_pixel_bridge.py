"""cv_bridge is used where it gives the same pixels, and only there."""

import array
import importlib.util

import numpy as np
import pytest
from sensor_msgs.msg import Image

from oxygen_ros.nodes.conversion import picture_decoder
from oxygen_ros.nodes.pixel_bridge import BYTES_PER_PIXEL, PixelBridge
from oxygen_ros.perception.images import ImageError

INSTALLED = importlib.util.find_spec('cv_bridge') is not None

# A stand-in that treats rgb8 right, swaps the colours of bgr8, and knows nothing else.
STAND_IN = '''
import numpy as np
class CvBridge:
    def imgmsg_to_cv2(self, message, desired):
        if message.encoding not in ('rgb8', 'bgr8'):
            raise TypeError(message.encoding)
        return np.frombuffer(message.data, np.uint8).reshape(message.height, message.width, 3)
'''


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Install a cv_bridge of our own for this process and its children."""
    def install(source):
        (tmp_path / 'cv_bridge.py').write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setenv('PYTHONPATH', str(tmp_path))
        monkeypatch.delitem(__import__('sys').modules, 'cv_bridge', raising=False)

    yield install
    __import__('sys').modules.pop('cv_bridge', None)


def picture(encoding, height=6, width=8, padding=0):
    step = width * BYTES_PER_PIXEL.get(encoding, 1) + padding
    data = np.random.default_rng(1).integers(0, 256, height * step, dtype=np.uint8)
    return Image(height=height, width=width, encoding=encoding, step=step, data=array.array('B', data.tobytes()))


@pytest.mark.skipif(INSTALLED, reason='cv_bridge is installed here')
def test_without_cv_bridge_there_is_no_bridge():
    assert PixelBridge.find() is None


def test_encoding_of_which_it_gives_other_pixels_is_left_to_our_own_conversion(stand_in):
    stand_in(STAND_IN)
    bridge = PixelBridge.find()
    assert bridge.encodings == {'rgb8'}
    assert bridge.takes(picture('rgb8')) and not bridge.takes(picture('bgr8'))
    assert not bridge.takes(picture('rgb8', padding=4))  # some versions shear these
    for image in (picture('rgb8'), picture('bgr8'), picture('rgb8', padding=4)):
        assert np.array_equal(picture_decoder(image, bridge=bridge)(), picture_decoder(image)())


@pytest.mark.parametrize('source', ['raise ImportError("built for another NumPy")', 'import os; os.abort()'])
def test_cv_bridge_that_cannot_be_imported_is_not_used(stand_in, source):
    stand_in(source)
    assert PixelBridge.find() is None


def test_picture_that_cv_bridge_refuses_is_an_image_error(stand_in):
    stand_in(STAND_IN)
    with pytest.raises(ImageError, match='cv_bridge refuses the mono8 picture of 8x6'):
        PixelBridge(frozenset({'mono8'})).decode(picture('mono8'))


@pytest.mark.skipif(not INSTALLED, reason='cv_bridge is not installed here; it comes with a ROS distribution')
def test_installed_cv_bridge_gives_the_same_pixels():
    bridge = PixelBridge.find()
    assert bridge is not None, 'cv_bridge is there, but cannot be used: was it built for another NumPy?'
    assert bridge.encodings >= {'rgb8', 'bgr8', 'mono8'}
    for encoding in bridge.encodings:
        for size in ((6, 8), (3, 4), (48, 64)):
            image = picture(encoding, *size)
            assert np.array_equal(bridge.decode(image), picture_decoder(image)()), (encoding, size)
