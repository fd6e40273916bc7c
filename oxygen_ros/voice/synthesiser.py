"""Makes speech of text with the library of espeak-ng."""

from __future__ import annotations

import ctypes
import ctypes.util
import threading
from collections.abc import Callable

import numpy as np

from oxygen_ros.errors import ConfigError

MISSING = ("speech output needs the library of espeak-ng: pip install 'oxygen_ros[speech]', or apt install "
           'libespeak-ng1')
# From speak_lib.h, which espeak-ng keeps stable.
_SYNCHRONOUS = 2       # AUDIO_OUTPUT_SYNCHRONOUS: samples go to the callback, in the thread that calls
_DONT_EXIT = 0x8000    # espeakINITIALIZE_DONT_EXIT
_CHARS_UTF8 = 1        # espeakCHARS_UTF8
_POS_CHARACTER = 1     # POS_CHARACTER
_RATE, _PITCH = 1, 3   # espeakRATE, espeakPITCH
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


class Synthesiser:
    """
    Speaks text into a function.

    espeak-ng has one state for the whole process: instances take turns.

    :param voice: a voice of espeak-ng: en-us, en (British), en-us+f3 (a woman's).
    :param words_per_minute: speed, 80 to 450.
    :param pitch: 0 to 99.
    :raises ConfigError: the library is missing or has no such voice.
    """

    _lock = threading.Lock()
    _library: ctypes.CDLL | None = None
    rate = 0  # samples per second

    def __init__(self, voice: str = 'en-us', words_per_minute: int = 160, pitch: int = 50) -> None:
        self._settings = voice.encode(), words_per_minute, pitch
        with Synthesiser._lock:
            if Synthesiser._library is None:
                Synthesiser._library, Synthesiser.rate = _load()
            if self._library.espeak_SetVoiceByName(self._settings[0]):
                raise ConfigError(f'espeak-ng has no voice {voice!r}: try en-us or en (British)')

    def speak(self, text: str, sink: Callable[[np.ndarray], bool]) -> bool:
        """
        Speak a text. Blocks until it is done.

        :param sink: takes samples, int16 [any number], `rate` per second; False ends the text at once.
        :return: whether it came to its end.
        """
        failures: list[BaseException] = []
        ended = []

        def take(samples: ctypes.POINTER, count: int, _: ctypes.c_void_p) -> int:
            try:
                if samples and count > 0 and not sink(np.ctypeslib.as_array(samples, (count,)).copy()):
                    ended.append(True)
            except BaseException as failure:  # noqa: B902 - must not go through C
                failures.append(failure)
            return 1 if ended or failures else 0

        voice, words_per_minute, pitch = self._settings
        data = text.replace('\0', ' ').encode(errors='replace') + b'\0'
        with Synthesiser._lock:
            callback = _CALLBACK(take)
            self._library.espeak_SetSynthCallback(callback)
            self._library.espeak_SetVoiceByName(voice)
            self._library.espeak_SetParameter(_RATE, words_per_minute, 0)
            self._library.espeak_SetParameter(_PITCH, pitch, 0)
            self._library.espeak_Synth(data, ctypes.c_size_t(len(data)), 0, _POS_CHARACTER, 0, _CHARS_UTF8, None, None)
        if failures:
            raise failures[0]
        return not ended

    def samples(self, text: str) -> np.ndarray:
        """Return a whole text as int16 [samples]."""
        parts = [np.zeros(0, np.int16)]
        self.speak(text, lambda part: parts.append(part) or True)
        return np.concatenate(parts)


def _load() -> tuple[ctypes.CDLL, int]:
    """Load and initialise the library: that of the package espeakng-loader, else that of the system."""
    data = None
    try:
        import espeakng_loader
        name, data = espeakng_loader.get_library_path(), espeakng_loader.get_data_path().encode()
    except ModuleNotFoundError:
        name = ctypes.util.find_library('espeak-ng') or 'libespeak-ng.so.1'
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        raise ConfigError(f'{MISSING} ({error})') from error
    rate = library.espeak_Initialize(_SYNCHRONOUS, 0, data, _DONT_EXIT)
    if rate <= 0:
        raise ConfigError(f'espeak-ng in {name!r} does not start (code {rate}): are its data files there?')
    return library, rate
