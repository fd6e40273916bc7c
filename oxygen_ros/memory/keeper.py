"""A memory store with a thread of its own: a slow disk must not delay a command."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import TypeVar

import numpy as np

from oxygen_ros.memory.database import MemoryDamaged, MemoryStoreError, MemoryUnavailable
from oxygen_ros.memory.entry import Entry, Pose
from oxygen_ros.memory.meaning_index import MeaningIndex, TextEmbedder
from oxygen_ros.memory.store import LARGEST_LIMIT, MemoryStore
from oxygen_ros.memory.thumbnail import thumbnail

LEAST_LIKENESS = 0.3  # of a note and a question that have to do with each other; MiniLM gives less to most pairs
LONGEST_QUESTION = 2000  # characters; what people ask is far shorter, and an encoder reads no more anyway
MOST_WAITING = 256  # calls; a disk that answers so slowly does not get more

Result = TypeVar('Result')


class MemoryKeeper:
    """
    Adds and queries in the background, one call after the other.

    A file that is locked, or whose disk is full, fails the call alone: the next one tries again. A file that is damaged
    or gone is opened anew (which moves a damaged one aside), and the call is made once more.

    Threads: all methods from any thread; done-callbacks of the futures, and `report`, run in the keeper's thread.

    :param open_store: opens the store; called again when that is needed.
    :param report: told in one line what became of the file, when that is not what one would expect.
    :param side: most pixels of the pictures kept with notes, 0 keeps none. :param embedder: for searching by meaning.
    :raises ConfigError: the path is that of another program's file.
    :raises MemoryStoreError: the file can never be opened there.
    """

    def __init__(self, path: Path, open_store: Callable[[], MemoryStore], report: Callable[[str], None],
                 side: int = 0, embedder: TextEmbedder | None = None) -> None:
        self.path, self._open, self._report, self._side, self._embedder = path, open_store, report, side, embedder
        self._store: MemoryStore | None = None
        self._index: MeaningIndex | None = None
        self._waiting, self._lock, self._closed = 0, threading.Lock(), False
        try:
            self._opened()
        except MemoryUnavailable as error:
            report(f'{error}; tried again with every note')
        self._thread = ThreadPoolExecutor(1, 'memory')
        if embedder is not None:
            self._thread.submit(self._catch_up)

    def add(self, text: str, stamp_ns: int, frame_number: int, tf_frame: str = '', image: np.ndarray | None = None,
            pose: Pose | None = None) -> Future[Entry]:
        """
        Store a note; see `MemoryStore.add`.

        :param image: uint8 [height, width, 3], RGB: picture of the observation.
        """
        def work(store: MemoryStore) -> Entry:
            picture = b'' if image is None or not self._side else thumbnail(image, self._side)
            entry = store.add(text, stamp_ns, frame_number, tf_frame, thumbnail=picture, pose=pose)
            if self._index is not None and entry.count == 1:
                self._index.add([(entry.entry_id, entry.text)])
            return entry

        return self._submit(work)

    def query(self, words: str, from_ns: int | None, to_ns: int | None, limit: int, thumbnails: bool = False,
              by_meaning: bool = False) -> Future[list[Entry]]:
        """
        Search; newest first, see `MemoryStore.query`, or by meaning, nearest first, see `MeaningIndex.query`.

        :param thumbnails: with the pictures, see `MemoryStore.with_pictures`.
        """
        def found(store: MemoryStore) -> list[Entry]:
            if not by_meaning:
                return store.query(words, from_ns, to_ns, limit)
            if self._index is None:
                raise MemoryStoreError('memory cannot be searched by meaning: set the parameter memory.embedding')
            if not words.strip():
                raise MemoryStoreError('a search by meaning needs words')
            if len(words) > LONGEST_QUESTION:
                raise MemoryStoreError(f'{len(words)} characters are too many to search for by meaning: at most '
                                       f'{LONGEST_QUESTION}')
            return self._index.query(words, from_ns, to_ns, min(limit, LARGEST_LIMIT))

        return self._submit(lambda store: store.with_pictures(found(store)) if thumbnails else found(store))

    def recall(self, question: str, limit: int) -> Future[list[Entry]]:
        """
        Find what has to do with a question, most relevant first: by meaning if that is possible, and by words.

        Of a long question only the beginning is read.
        """
        question = question[:LONGEST_QUESTION]

        def work(store: MemoryStore) -> list[Entry]:
            near = [] if self._index is None else self._index.query(question, limit=limit, least=LEAST_LIKENESS)
            found = {entry.entry_id: entry for entry in (*near, *store.recall(question, limit))}
            return list(found.values())[:limit]

        return self._submit(work)

    def close(self, timeout: float | None = None) -> bool:
        """
        Finish what was begun, then close the store.

        :param timeout: seconds after which a disk that hangs is not waited for; None waits.
        :returns: whether it is closed.
        """
        if self._closed:
            return True
        self._closed = True
        closing = self._thread.submit(lambda: self._store is not None and self._store.close())
        self._thread.shutdown(wait=False)
        try:
            closing.result(timeout)
        except FutureTimeoutError:
            return False
        self._thread.shutdown(wait=True)
        return True

    def _submit(self, work: Callable[[MemoryStore], Result]) -> Future[Result]:
        with self._lock:
            if self._waiting >= MOST_WAITING:
                refused: Future = Future()
                refused.set_exception(MemoryStoreError(
                    f'memory {self.path}: {self._waiting} calls wait already, the disk is too slow'))
                return refused
            self._waiting += 1
        return self._thread.submit(self._run, work)

    def _run(self, work: Callable[[MemoryStore], Result]) -> Result:
        with self._lock:
            self._waiting -= 1
        try:
            return work(self._opened())
        except MemoryDamaged as error:
            self._store.close()
            self._store = self._index = None
            store = self._opened()
            self._report(f'{error}; it was opened anew')
            return work(store)

    def _opened(self) -> MemoryStore:
        if self._store is None:
            store = self._open()
            if store.warning:
                self._report(store.warning)
            self._store = store
            if self._embedder is not None:
                self._index = MeaningIndex(store, self._embedder)
        return self._store

    def _catch_up(self) -> None:
        """Embed what was noted without an encoder, some at a time, so that calls come in between."""
        try:
            if not self._closed and self._index is not None and self._index.catch_up():
                self._thread.submit(self._catch_up)
        except (MemoryStoreError, RuntimeError) as error:  # RuntimeError: the thread takes nothing any more
            if not self._closed:
                self._report(f'notes from before cannot be searched by meaning: {error}')
