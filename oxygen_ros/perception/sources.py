"""A video file or a camera device as the pictures of one camera, through OpenCV. No ROS here."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np

from oxygen_ros.errors import ConfigError

RETRY_SECONDS = 1.0      # between attempts to open a device again that was unplugged
DEFAULT_FILE_RATE = 30.0  # for files that do not tell their rate


class VideoSource:
    """
    Reads pictures in a thread of its own and hands each to `on_picture`, in that thread.

    A file is played with its own frame rate; a device and a network stream give the pace themselves and are opened
    again after they were lost.

    :param location: path of a video file, '/dev/video0' or '0' for a device, or a URL that OpenCV can open.
    :param on_picture: takes uint8 [height, width, 3] RGB; it should only store it.
    :param loop: play a file again and again.
    :raises ConfigError: it cannot be opened, or gives no picture.
    """

    def __init__(self, location: str, on_picture: Callable[[np.ndarray], None], loop: bool = False):
        self.location = location
        self.problem = ''  # why no pictures come at the moment, for people; written by the thread, read by others
        self._on_picture = on_picture
        self._device = int(location) if location.isdigit() else None
        self._is_file = self._device is None and '://' not in location and not location.startswith('/dev/')
        self._loop = loop
        self._stop = threading.Event()
        self._capture, self._first = self._open()
        self._thread = threading.Thread(target=self._run, name=f'video {location}', daemon=True)

    def start(self) -> None:
        """Begin to hand out pictures."""
        self._thread.start()

    def close(self) -> None:
        """End the thread and release the device, unless a read of it hangs."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2.0)
        if not self._thread.is_alive():
            self._capture.release()

    def _open(self) -> tuple[cv2.VideoCapture, np.ndarray]:
        """Open the source and read its first picture, the only proof that it works."""
        path = Path(f'/dev/video{self._device}' if self._device is not None else self.location)
        if '://' not in self.location and not path.exists():
            what = 'video file' if self._is_file else 'camera device'
            raise ConfigError(f'{what} {str(path)!r} does not exist')
        capture = cv2.VideoCapture(self.location if self._device is None else self._device)
        read, picture = capture.read() if capture.isOpened() else (False, None)
        if not read:
            capture.release()
            raise ConfigError(f'video source {self.location!r} gives no pictures: OpenCV cannot '
                              + ('decode the file' if self._is_file else 'read it, or another program uses it'))
        return capture, picture

    def _run(self) -> None:
        rate = self._capture.get(cv2.CAP_PROP_FPS)
        period = 1.0 / (rate if math.isfinite(rate) and 0.1 <= rate <= 1000.0 else DEFAULT_FILE_RATE)
        due = time.monotonic()
        picture: np.ndarray | None = self._first
        while picture is not None and not self._stop.is_set():
            self._on_picture(cv2.cvtColor(picture, cv2.COLOR_BGR2RGB))
            if self._is_file:
                due = max(due + period, time.monotonic() - period)  # after a delay: on from here, no burst
                self._stop.wait(max(0.0, due - time.monotonic()))
            picture = self._next()

    def _next(self) -> np.ndarray | None:
        """Read the next picture: that of a looped file from its beginning, that of a lost device when it is back."""
        read, picture = self._capture.read()
        if read:
            return picture
        self._capture.release()
        if self._is_file and not self._loop:
            self.problem = f'video file {self.location!r} has ended'
            return None
        while not self._stop.is_set():
            try:
                self._capture, picture = self._open()
                self.problem = ''
                return picture
            except ConfigError as error:
                self.problem = str(error)
                self._stop.wait(RETRY_SECONDS)
        return None
