"""Search by meaning: the vectors of all notes in memory, and the notes in the order of their likeness to a question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from oxygen_ros.memory.entry import Entry
from oxygen_ros.memory.store import MemoryStore

BATCH = 32  # texts that are embedded in one go
MOST_AT_ONCE = 500  # ids that the store is asked for


class TextEmbedder(Protocol):
    """What the index needs of an encoder; see `embedding.Embedder`. `mark` tells its vectors from those of others."""

    mark: bytes
    size: int

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Return float32 [texts, size], each of length 1."""
        ...


class MeaningIndex:
    """
    Vectors of the notes of one store. They are kept in its file as half-precision numbers behind the encoder's mark.

    Threads: one at a time.

    :raises MemoryStoreError: memory cannot be read.
    """

    def __init__(self, store: MemoryStore, embedder: TextEmbedder) -> None:
        self._store, self._embedder = store, embedder
        known, self._foreign = [], []  # rows that we can read; ids of notes that another encoder has seen
        length = len(embedder.mark) + 2 * embedder.size
        for entry_id, blob in store.vectors():
            if len(blob) == length and blob.startswith(embedder.mark):
                known.append((entry_id, np.frombuffer(blob, np.float16, offset=len(embedder.mark))))
            else:
                self._foreign.append(entry_id)
        self._ids = np.array([entry_id for entry_id, _ in known], dtype=np.int64)
        self._vectors = np.array([vector for _, vector in known], np.float32).reshape(len(known), embedder.size)
        self._count = len(known)

    def add(self, entries: Sequence[tuple[int, str]]) -> None:
        """Embed notes (id, text) and keep their vectors."""
        if not entries:
            return
        vectors = self._embedder.embed([text for _, text in entries])
        self._store.set_vectors((entry_id, self._embedder.mark + vector.astype(np.float16).tobytes())
                                for (entry_id, _), vector in zip(entries, vectors))
        needed = self._count + len(entries)
        if needed > len(self._ids):  # grows by half, so that adding one by one stays cheap
            room = max(1024, needed + needed // 2)
            self._ids = np.resize(self._ids, room)
            grown = np.zeros((room, self._embedder.size), np.float32)
            grown[:self._count] = self._vectors[:self._count]
            self._vectors = grown
        self._ids[self._count:needed] = [entry_id for entry_id, _ in entries]
        self._vectors[self._count:needed] = vectors
        self._count = needed

    def catch_up(self) -> bool:
        """Embed some notes that have no vector of this encoder yet; return whether there may be more of them."""
        ids, self._foreign = self._foreign[-BATCH:], self._foreign[:-BATCH]
        entries = [(entry.entry_id, entry.text) for entry in self._store.by_ids(ids)] if ids else []
        if not ids:
            entries = self._store.without_vector(BATCH)
        self.add(entries)
        return bool(ids) or len(entries) == BATCH

    def query(self, words: str, from_ns: int | None = None, to_ns: int | None = None, limit: int = 20,
              least: float = -1.0) -> list[Entry]:
        """
        Return entries of the time window, those most like the words first; see `MemoryStore.query`.

        :param least: likeness (cosine, -1 to 1) below which an entry is left out.
        """
        scores = self._vectors[:self._count] @ self._embedder.embed([words])[0]
        found: dict[int, Entry] = {}
        count = int(np.count_nonzero(scores >= least))
        taken, size = 0, min(4 * limit, MOST_AT_ONCE)
        while len(found) < limit and taken < count:
            most = min(count, taken + size)
            best = np.argpartition(-scores, most - 1)[:most]
            best = best[np.argsort(-scores[best], kind='stable')][taken:]
            for entry in self._store.by_ids([int(i) for i in self._ids[best]]):
                if ((from_ns is None or entry.last_seen_ns >= from_ns)
                        and (to_ns is None or entry.first_seen_ns <= to_ns)):
                    found.setdefault(entry.entry_id, entry)
            taken, size = most, min(4 * size, MOST_AT_ONCE)
        return list(found.values())[:limit]
