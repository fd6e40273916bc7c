"""A memory store with a thread of its own: a slow disk must not delay a command."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from oxygen_ros.memory.store import MemoryStore


class MemoryKeeper:
    """
    Adds and queries in the background, one call after the other.

    Threads: `add`, `query` and `close` from any thread; done-callbacks of the futures run in the keeper's thread.

    :param store: belongs to the keeper from now on, which closes it.
    """

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self._thread = ThreadPoolExecutor(1, 'memory')

    def add(self, text: str, stamp_ns: int, frame_number: int, tf_frame: str = '') -> Future:
        """Store a note; the future gives the Entry. See `MemoryStore.add`."""
        return self._thread.submit(self.store.add, text, stamp_ns, frame_number, tf_frame)

    def query(self, words: str, from_ns: int | None, to_ns: int | None, limit: int) -> Future:
        """Search; the future gives a list of Entry, newest first. See `MemoryStore.query`."""
        return self._thread.submit(self.store.query, words, from_ns, to_ns, limit)

    def close(self) -> None:
        """Finish what was begun, then close the store."""
        self._thread.shutdown(wait=True)
        self.store.close()
