"""Resizing keeps the aspect ratio and equals, to the bit, the transform that pi-0.5 is served with: Pillow's, to 12."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from oxygen_ros.perception import resize
from oxygen_ros.perception.resize import resize_into, resize_with_pad

GOLDEN = np.load(Path(__file__).parent / 'data' / 'resize_with_pad.npz')
needs_library = pytest.mark.skipif(resize._LIBRARY is None, reason='the package is not built')
sizes = st.integers(1, 300)
PICTURES = ('noise', 'black and white', 'white')


def _picture(kind: str, height: int, width: int, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    if kind == 'white':
        return np.full((height, width, 3), 255, np.uint8)
    if kind == 'noise':
        return generator.integers(0, 256, (height, width, 3), np.uint8)
    return generator.integers(0, 2, (height, width, 3), np.uint8) * np.uint8(255)


def _pillow(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resize in two calls, rows first: in one call Pillow 13 changes the order for some shapes."""
    rows = Image.fromarray(image).resize((width, len(image)), Image.Resampling.BILINEAR)
    return np.asarray(rows.resize((width, height), Image.Resampling.BILINEAR))


@pytest.mark.parametrize('name', ['landscape', 'portrait', 'upscale'])
def test_equals_the_serving_transform_of_openpi_bit_by_bit(name):
    assert (resize_with_pad(GOLDEN[f'{name}_input'], 56, 56) == GOLDEN[f'{name}_expected']).all()


def test_without_the_library_pillow_does_the_same(monkeypatch):
    picture = _picture('noise', 97, 131)
    expected = resize_with_pad(picture, 56, 56)
    monkeypatch.setattr(resize, '_LIBRARY', None)
    assert (resize_with_pad(picture, 56, 56) == expected).all()


def test_a_built_package_has_the_library():
    if not list(Path(resize.__file__).parents[1].glob('liboxygen_ros__rosidl*.so')):
        pytest.skip('built by colcon, or not at all')
    assert resize._LIBRARY is not None


@pytest.mark.parametrize('library', [True, False])
def test_tall_pictures_go_along_the_rows_first_whatever_pillow_does(monkeypatch, library):
    if not library:
        monkeypatch.setattr(resize, '_LIBRARY', None)
    # A half rounds up, so rows make 1, 1, 0, 0, and these 6/7 and 1/7. Columns first would make 3/7, which is nothing.
    picture = np.zeros((4, 2, 3), np.uint8)
    picture[0, 0] = picture[1, 1] = 1
    assert resize_with_pad(picture, 2, 1)[:, 0, 0].tolist() == [1, 0]


@needs_library
@pytest.mark.parametrize('plain', [False, True])
@given(height=sizes, width=sizes, new_height=sizes, new_width=sizes, seed=st.integers(0, 99),
       kind=st.sampled_from(PICTURES))
@example(height=480, width=640, new_height=168, new_width=224, seed=0, kind='noise')
@example(height=1080, width=1920, new_height=126, new_width=224, seed=0, kind='noise')
@example(height=1, width=1, new_height=1, new_width=1, seed=0, kind='white')
@settings(deadline=None, max_examples=150)
def test_library_equals_pillow_bit_by_bit(plain, height, width, new_height, new_width, seed, kind):
    picture = _picture(kind, height, width, seed)
    target = np.zeros((new_height, new_width, 3), np.uint8)
    resize_into(picture, target, plain)
    assert (target == _pillow(picture, new_height, new_width)).all()


@needs_library
@pytest.mark.parametrize('plain', [False, True])
@pytest.mark.parametrize('shape', [(1, 16384), (16384, 1), (3, 16383), (1, 16385), (16385, 2)])
def test_longest_pictures_equal_pillow_too(plain, shape):
    for kind in PICTURES:
        picture = _picture(kind, *shape)
        target = np.zeros((2, 2, 3), np.uint8)
        resize_into(picture, target, plain)
        assert (target == _pillow(picture, 2, 2)).all()


@needs_library
@pytest.mark.parametrize('plain', [False, True])
def test_nothing_beyond_the_target_is_written(plain):
    for new_height, new_width in ((7, 5), (8, 16), (3, 21)):
        around = np.full((new_height + 2, new_width + 2, 3), 77, np.uint8)
        resize_into(_picture('noise', 31, 43), around[1:-1, 1:-1], plain)
        inside = np.zeros(around.shape[:2], bool)
        inside[1:-1, 1:-1] = True
        assert (around[~inside] == 77).all()
        assert (around[1:-1, 1:-1] == _pillow(_picture('noise', 31, 43), new_height, new_width)).all()


@needs_library
def test_pictures_with_gaps_between_their_rows_or_mirrored_are_read_right():
    picture = _picture('noise', 40, 60)
    for view in (picture[5:35, 7:50], picture[::-1], picture[:, ::-1], picture[..., ::-1]):
        target = np.zeros((9, 11, 3), np.uint8)
        resize_into(view, target)
        assert (target == _pillow(np.ascontiguousarray(view), 9, 11)).all()


@needs_library
@pytest.mark.parametrize('image, target', [
    (np.zeros((4, 4, 4), np.uint8), np.zeros((2, 2, 4), np.uint8)),
    (np.zeros((4, 4, 3), np.float32), np.zeros((2, 2, 3), np.uint8)),
    (np.zeros((4, 4, 3), np.uint8), np.zeros((2, 2, 3), np.uint16)),
    (np.zeros((0, 4, 3), np.uint8), np.zeros((2, 2, 3), np.uint8)),
    (np.zeros((4, 4, 3), np.uint8), np.zeros((2, 4, 3), np.uint8)[:, ::2]),
])
def test_what_is_no_picture_is_refused(image, target):
    with pytest.raises(ValueError, match='are not uint8'):
        resize_into(image, target)


def test_borders_are_black_and_the_picture_is_centred():
    resized = resize_with_pad(np.full((10, 20, 3), 200, np.uint8), 40, 40)
    assert (resized[:10] == 0).all() and (resized[30:] == 0).all() and (resized[10:30] == 200).all()


def test_picture_of_the_right_size_is_not_touched():
    picture = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)
    assert resize_with_pad(picture, 5, 7) is picture


def test_extreme_aspect_ratio_keeps_at_least_one_pixel():
    resized = resize_with_pad(np.full((1, 1000, 3), 255, np.uint8), 16, 16)
    assert resized.shape == (16, 16, 3) and resized.max() == 255
