"""Video files and devices as cameras."""

import threading

import cv2
import numpy as np
import pytest

from oxygen_ros.errors import ConfigError
from oxygen_ros.perception.sources import VideoSource

COLOURS = [(200, 30, 60), (30, 200, 60), (60, 30, 200)]


@pytest.fixture
def video(tmp_path):
    """Write a video of three plain RGB pictures, 100 per second."""
    path = tmp_path / 'three.avi'
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*'MJPG'), 100.0, (64, 48))
    for colour in COLOURS:
        writer.write(np.full((48, 64, 3), colour[::-1], np.uint8))
    writer.release()
    return str(path)


class Collector:
    """Takes pictures and tells when there are enough."""

    def __init__(self, wanted):
        self.pictures = []
        self.enough = threading.Event()
        self._wanted = wanted

    def __call__(self, picture):
        self.pictures.append(picture)
        if len(self.pictures) >= self._wanted:
            self.enough.set()


def test_every_picture_of_a_file_comes_once_in_rgb(video):
    collector = Collector(3)
    source = VideoSource(video, collector)
    source.start()
    assert collector.enough.wait(10)
    source._thread.join(10)
    assert not source._thread.is_alive() and 'ended' in source.problem
    source.close()
    assert len(collector.pictures) == 3
    for picture, colour in zip(collector.pictures, COLOURS):
        assert picture.shape == (48, 64, 3) and abs(picture[24, 32].astype(int) - colour).max() < 12


def test_looped_file_starts_again(video):
    collector = Collector(7)
    source = VideoSource(video, collector, loop=True)
    source.start()
    assert collector.enough.wait(10)
    source.close()
    assert source.problem == ''
    assert [int(picture[0, 0].argmax()) for picture in collector.pictures[:7]] == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize('location, words', [('/nowhere/film.mp4', 'video file .* does not exist'),
                                             ('987', 'camera device .*video987.* does not exist'),
                                             ('/dev/video987', 'camera device .* does not exist')])
def test_source_that_does_not_exist_is_one_clear_error(location, words):
    with pytest.raises(ConfigError, match=words):
        VideoSource(location, lambda picture: None)


def test_file_that_is_no_video_is_one_clear_error(tmp_path):
    path = tmp_path / 'film.avi'
    path.write_bytes(b'not a film' * 100)
    with pytest.raises(ConfigError, match='gives no pictures'):
        VideoSource(str(path), lambda picture: None)


def test_file_that_vanishes_is_looked_for_again(video, monkeypatch):
    monkeypatch.setattr('oxygen_ros.perception.sources.RETRY_SECONDS', 0.01)
    waiting = threading.Event()
    source = VideoSource(video, lambda picture: None, loop=True)
    monkeypatch.setattr(source, '_open', lambda: (waiting.set(), (_ for _ in ()).throw(ConfigError('it is gone')))[1])
    source.start()
    assert waiting.wait(10)
    source.close()
    assert source.problem == 'it is gone'
    assert not source._thread.is_alive()
