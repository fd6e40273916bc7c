"""Resizing keeps the aspect ratio and equals the transform that pi-0.5 is served with."""

from pathlib import Path

import numpy as np
import pytest

from oxygen_ros.perception.resize import resize_with_pad

GOLDEN = np.load(Path(__file__).parent / 'data' / 'resize_with_pad.npz')


@pytest.mark.parametrize('name', ['landscape', 'portrait', 'upscale'])
def test_equals_the_serving_transform_of_openpi_bit_by_bit(name):
    assert (resize_with_pad(GOLDEN[f'{name}_input'], 56, 56) == GOLDEN[f'{name}_expected']).all()


def test_borders_are_black_and_the_picture_is_centred():
    resized = resize_with_pad(np.full((10, 20, 3), 200, np.uint8), 40, 40)
    assert (resized[:10] == 0).all() and (resized[30:] == 0).all() and (resized[10:30] == 200).all()


def test_picture_of_the_right_size_is_not_touched():
    picture = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)
    assert resize_with_pad(picture, 5, 7) is picture


def test_extreme_aspect_ratio_keeps_at_least_one_pixel():
    resized = resize_with_pad(np.full((1, 1000, 3), 255, np.uint8), 16, 16)
    assert resized.shape == (16, 16, 3) and resized.max() == 255
