"""The thread that speaks: takes lines, makes sound of them, stops in the middle when told to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np

from oxygen_ros.errors import ConfigError
from oxygen_ros.voice.audio import device_of, load_sounddevice, write_wav
from oxygen_ros.voice.lines import Ending, Line, LineQueue

PIECE = 0.05  # seconds: after so long it notices that it shall stop


class Synthesis(Protocol):
    """What makes speech of text; see synthesiser.py."""

    rate: int

    def speak(self, text: str, sink: Callable[[np.ndarray], bool]) -> bool:
        """Speak a text into a function that returns whether to go on; return whether it came to its end."""


class Output(Protocol):
    """
    Where sound goes. One thread.

    :ivar audible: whether somebody hears it at once.
    """

    audible: bool

    def begin(self, line: Line, rate: int) -> None:
        """Begin a line; samples per second."""

    def write(self, samples: np.ndarray) -> None:
        """Take samples, int16; blocks as long as the device is full."""

    def end(self, whole: bool) -> None:
        """End the line; what has not sounded yet is cut off if it is not whole."""


class WavFolder:
    """Each line becomes a file: 0001.wav, and a line in lines.txt that says what it is."""

    audible = False

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder).expanduser()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f'folder {str(folder)!r} for sound cannot be made: {error}') from error
        self._number = len(list(self._folder.glob('*.wav')))
        self._parts: list[np.ndarray] = []

    def begin(self, line: Line, rate: int) -> None:
        """Begin a file."""
        self._line, self._rate, self._parts = line, rate, [np.zeros(0, np.int16)]

    def write(self, samples: np.ndarray) -> None:
        """Take samples."""
        self._parts.append(samples)

    def end(self, whole: bool) -> None:
        """Write the file."""
        self._number += 1
        write_wav(self._folder / f'{self._number:04}.wav', np.concatenate(self._parts), self._rate)
        with open(self._folder / 'lines.txt', 'a', encoding='utf-8') as file:
            file.write(f'{self._number:04} {self._line.text}{"" if whole else " ..."}\n')


class SoundDevice:
    """
    A loudspeaker.

    :param device: name or part of it, or number; empty for the system's default.
    :raises ConfigError: there is none, or no PortAudio.
    """

    audible = True

    def __init__(self, device: str = '') -> None:
        self._library = load_sounddevice('a loudspeaker')
        self._device = device_of(device)
        try:
            self._library.check_output_settings(self._device, channels=1, dtype='int16')
        except (self._library.PortAudioError, ValueError) as error:
            raise ConfigError(f'the loudspeaker {device or "of the system"!r} cannot be opened: {error}; '
                              '`python -m sounddevice` lists the devices; with wav_folder none is needed') from error

    def begin(self, line: Line, rate: int) -> None:
        """Open the device."""
        self._stream = self._library.RawOutputStream(samplerate=rate, device=self._device, channels=1, dtype='int16',
                                                     latency='low')
        self._stream.start()

    def write(self, samples: np.ndarray) -> None:
        """Wait until the device has taken them."""
        self._stream.write(samples.tobytes())

    def end(self, whole: bool) -> None:
        """Let what was written sound, or cut it off."""
        try:
            if whole:
                self._stream.stop()
            else:
                self._stream.abort()
        finally:
            self._stream.close()


class Speaker:
    """
    Speaks the lines of a queue in a thread of its own until `close`.

    :param on_speaking: told True before it begins to speak and False when no line waits any more; in the thread.
        Nothing is told if the output is not audible.
    :param on_ending: told of each line how it ended, and what went wrong; in the thread.
    """

    def __init__(self, queue: LineQueue, synthesis: Synthesis, output: Output,
                 on_speaking: Callable[[bool], None] = lambda _: None,
                 on_ending: Callable[[Line, Ending, str], None] = lambda *_: None) -> None:
        self._queue, self._synthesis, self._output = queue, synthesis, output
        self._on_speaking, self._on_ending = on_speaking, on_ending
        self._thread = threading.Thread(target=self._run, name='voice', daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop speaking and end the thread."""
        self._queue.close()
        self._thread.join(timeout=2.0)

    def _run(self) -> None:
        speaking = False
        while (line := self._queue.take()) is not None:
            if not speaking and self._output.audible:
                speaking = True
                self._on_speaking(True)
            try:
                ending, problem = (Ending.SPOKEN if self._speak(line) else Ending.INTERRUPTED), ''
            except Exception as error:  # noqa: B902 - of the device or the library; the next line may do better
                ending, problem = Ending.FAILED, f'{type(error).__name__}: {error}'
            last = self._queue.done(ending)
            self._on_ending(line, ending, problem)
            if last and speaking:
                speaking = False
                self._on_speaking(False)

    def _speak(self, line: Line) -> bool:
        rate = self._synthesis.rate
        piece = round(PIECE * rate)

        def sink(samples: np.ndarray) -> bool:
            for start in range(0, len(samples), piece):
                if not self._queue.wanted():
                    return False
                self._output.write(samples[start:start + piece])
            return self._queue.wanted()

        self._output.begin(line, rate)
        whole = False
        try:
            whole = self._synthesis.speak(line.text, sink)
        finally:
            self._output.end(whole)
        return whole
