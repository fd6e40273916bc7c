"""Sound in: wav files and the microphone, as blocks of samples of one rate."""

from __future__ import annotations

import queue
import threading
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from oxygen_ros.errors import ConfigError
from oxygen_ros.voice.recogniser import RATE

BLOCK = 480  # samples: 30 ms, which the voice activity detection takes
WAITING_BLOCKS = 1000  # of a microphone, 30 s: what comes while the recogniser is busy
NO_SOUND_CARD = ("needs the Python package sounddevice (pip install 'oxygen_ros[speech]') and PortAudio (apt install "
                 'libportaudio2)')


def resample(samples: np.ndarray, rate: float, wanted: float) -> np.ndarray:
    """Return int16 samples at another rate; what the lower rate cannot hold is cut off in the spectrum."""
    count = round(len(samples) * wanted / rate)
    if count == len(samples) or not count:
        return samples[:count]
    spectrum = np.fft.rfft(samples.astype(np.float64))
    changed = np.fft.irfft(spectrum[:count // 2 + 1], count) * (count / len(samples))
    return np.clip(np.rint(changed), -2**15, 2**15 - 1).astype(np.int16)


def read_wav(path: Path | str) -> np.ndarray:
    """
    Return the sound of a wav file, int16 [samples], RATE per second; channels are averaged.

    :raises ConfigError: it cannot be read, or is not 16 bit PCM.
    """
    try:
        with wave.open(str(path)) as file:
            width, rate, channels = file.getsampwidth(), file.getframerate(), file.getnchannels()
            data = file.readframes(file.getnframes())
    except (OSError, EOFError, wave.Error) as error:
        raise ConfigError(f'sound {str(path)!r} cannot be read: {error}') from error
    if width != 2:
        raise ConfigError(f'sound {str(path)!r} has {8 * width} bits per sample: convert it to 16 bit PCM')
    samples = np.frombuffer(data[:len(data) // (2 * channels) * 2 * channels], '<i2').reshape(-1, channels)
    return resample(samples.mean(1).astype(np.int16) if channels > 1 else samples[:, 0], rate, RATE)


def write_wav(path: Path | str, samples: np.ndarray, rate: int) -> None:
    """Write int16 samples as a wav file of one channel."""
    with wave.open(str(path), 'wb') as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.astype('<i2').tobytes())


def blocks(samples: np.ndarray, silence: float = 0.0) -> Iterator[np.ndarray]:
    """
    Cut sound into blocks of BLOCK samples; the last is filled up.

    :param silence: seconds of it that follow, so that the end of speech is found.
    """
    count = -(-(len(samples) + round(silence * RATE)) // BLOCK) * BLOCK
    padded = np.zeros(count, np.int16)
    padded[:len(samples)] = samples
    return iter(padded.reshape(-1, BLOCK))


class Microphone:
    """
    A sound device that is recorded from; iterate over its blocks, which wait for sound, until `close`.

    Threads: PortAudio's own thread puts blocks, one thread iterates, any thread closes.

    :param device: name or part of it, or number; empty for the system's default.
    :raises ConfigError: there is none, or no PortAudio.
    """

    def __init__(self, device: str = '') -> None:
        self.lost = 0  # blocks that came too fast for who iterates
        self._blocks: queue.Queue[np.ndarray | None] = queue.Queue(WAITING_BLOCKS)
        self._closed = threading.Event()
        sounddevice = load_sounddevice('a microphone')
        try:
            self._stream = sounddevice.RawInputStream(
                samplerate=RATE, blocksize=BLOCK, device=device_of(device), channels=1, dtype='int16',
                callback=self._take)
            self._stream.start()
        except (sounddevice.PortAudioError, ValueError) as error:
            raise ConfigError(f'the microphone {device or "of the system"!r} cannot be opened: {error}; '
                              '`python -m sounddevice` lists the devices') from error

    def __iter__(self) -> Iterator[np.ndarray]:
        while not self._closed.is_set():
            try:
                yield self._blocks.get(timeout=0.1)
            except queue.Empty:
                if not self._stream.active:
                    raise ConfigError('the microphone has stopped: was it unplugged?') from None

    def close(self) -> None:
        """End the iteration and free the device."""
        self._closed.set()
        self._stream.close()

    def _take(self, data: bytes, *_: object) -> None:
        try:
            self._blocks.put_nowait(np.frombuffer(bytes(data), np.int16))
        except queue.Full:
            self.lost += 1


def load_sounddevice(what: str):
    """
    Return the module sounddevice.

    :raises ConfigError: it or PortAudio is missing.
    """
    try:
        import sounddevice
    except (ModuleNotFoundError, OSError) as error:
        raise ConfigError(f'{what} {NO_SOUND_CARD}: {error}') from error
    return sounddevice


def device_of(name: str) -> str | int | None:
    """Return a device as sounddevice names it: None, a number or a part of a name."""
    return int(name) if name.isdecimal() else name or None
