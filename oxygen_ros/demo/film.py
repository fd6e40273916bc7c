"""
Film: keeps pictures of the simulator while it runs, and makes a video of them.

Threads: `camera` and `view` belong to the monitor's executor; the rest comes when it has ended, but for `newest`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from oxygen_ros.demo.events import Event
from oxygen_ros.demo.subtitles import BACKGROUND, Subtitles

LONGEST = 180  # s: of a longer run the end is shown
QUALITY = 92  # of the pictures that are kept, JPEG
VIEW_SIZE = (640, 480)
SIDE = 240  # pixels: width of the column of cameras
CAMERAS = {'head': (0, 0, SIDE), 'left_wrist': (0, SIDE, SIDE // 2), 'right_wrist': (SIDE // 2, SIDE, SIDE // 2)}
GIF_SHARE = 0.6  # of the size: a GIF is large


@dataclass(frozen=True)
class Written:
    """A video that was written: its file, size in pixels, frames, and how they are stored."""

    path: Path
    width: int
    height: int
    frames: int
    rate: float
    form: str

    def to_dict(self) -> dict:
        """Return it for JSON."""
        return {'file': self.path.name, 'form': self.form, 'width': self.width, 'height': self.height,
                'frames': self.frames, 'frames_per_second': self.rate, 'seconds': round(self.frames / self.rate, 2)}


class Film:
    """
    Pictures of a run.

    :param rate: pictures per second of simulated time that come.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._cameras = np.full((VIEW_SIZE[1], SIDE, 3), BACKGROUND, np.uint8)
        self._frames: deque[tuple[int, np.ndarray]] = deque(maxlen=round(LONGEST * rate))  # stamp, JPEG
        self.newest: np.ndarray | None = None  # the newest picture of the scene, uint8 [height, width, 3] RGB

    def camera(self, name: str, image: np.ndarray) -> None:
        """Take in the picture of a camera, uint8 [height, width, 3] RGB."""
        left, top, side = CAMERAS[name]
        self._cameras[top:top + side, left:left + side] = cv2.resize(image, (side, side),
                                                                     interpolation=cv2.INTER_CUBIC)

    def view(self, stamp_ns: int, image: np.ndarray) -> None:
        """Take in a picture of the scene, and with it the newest ones of the cameras."""
        if (image.shape[1], image.shape[0]) != VIEW_SIZE:
            image = cv2.resize(image, VIEW_SIZE)
        self.newest = image
        whole = np.hstack([image, self._cameras])
        self._frames.append((stamp_ns, cv2.imencode('.jpg', whole[..., ::-1], (cv2.IMWRITE_JPEG_QUALITY, QUALITY))[1]))

    def write(self, folder: Path, events: Sequence[Event], subtitles: Subtitles, since_ns: int = 0) -> Written | None:
        """
        Write demo.mp4, or demo.gif where OpenCV cannot write MPEG-4.

        :param since_ns: leave out what was before.
        :returns: None if there are no pictures.
        """
        frames = [frame for frame in self._frames if frame[0] >= since_ns]
        if not frames:
            return None

        def pictures() -> Iterator[np.ndarray]:
            for stamp_ns, data in frames:
                whole = cv2.imdecode(data, cv2.IMREAD_COLOR)[..., ::-1]
                yield subtitles.below(whole, stamp_ns, events)

        return _write_mp4(folder / 'demo.mp4', pictures(), self._rate) or _write_gif(folder / 'demo.gif', pictures(),
                                                                                      self._rate)


def _write_mp4(path: Path, pictures: Iterator[np.ndarray], rate: float) -> Written | None:
    """Write pictures as MPEG-4, which OpenCV brings along; None if it cannot."""
    first = next(pictures)
    height, width = first.shape[:2]
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*'mp4v'), rate, (width, height))
    if not writer.isOpened():
        path.unlink(missing_ok=True)
        return None
    count = 1
    writer.write(first[..., ::-1])
    for picture in pictures:
        writer.write(picture[..., ::-1])
        count += 1
    writer.release()
    return Written(path, width, height, count, rate, 'MPEG-4 part 2 (mp4v) in MP4')


def _write_gif(path: Path, pictures: Iterator[np.ndarray], rate: float) -> Written:
    """Write pictures as an animated GIF, smaller."""
    images = [Image.fromarray(cv2.resize(picture, None, fx=GIF_SHARE, fy=GIF_SHARE, interpolation=cv2.INTER_AREA))
              .quantize(128) for picture in pictures]
    images[0].save(path, save_all=True, append_images=images[1:], duration=round(1000 / rate), loop=0)
    return Written(path, *images[0].size, len(images), rate, 'animated GIF (no MPEG-4 encoder here)')
