"""`oxygen_ros bench memory`: how long a query of the robot's memory takes, with as many entries as a year of notes."""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from oxygen_ros.memory.store import MemoryStore

LIMIT_MS = 10.0
THINGS = ('cup', 'box', 'door', 'person', 'chair', 'bottle', 'dog', 'lamp', 'book', 'shelf', 'ball', 'phone', 'bag')
COLORS = ('red', 'green', 'blue', 'yellow', 'black', 'white', 'brown', 'grey')
PLACES = ('kitchen', 'hall', 'office', 'garage', 'garden', 'corridor')
S = 1_000_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `oxygen_ros bench memory`."""
    parser.add_argument('--entries', type=int, default=100_000, metavar='N', help='notes in memory (default: 100000)')
    parser.add_argument('--rounds', type=int, default=200, metavar='R', help='queries of each kind (default: 200)')
    parser.add_argument('--folder', type=Path, metavar='DIR', help='where the database is made (default: a temporary '
                                                                   'folder)')
    parser.add_argument('--embedding', default='', metavar='ENCODER',
                        help='also search by meaning: minilm, or a folder')
    parser.add_argument('--json', type=Path, metavar='FILE', help='write the results to a file')


def main(arguments: argparse.Namespace) -> int:
    """Fill a memory, query it, print the times; 1 if a query by words or time took longer than the limit."""
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = Path(folder) / 'memory.db'
        began = time.perf_counter()
        _fill(path, arguments.entries)
        seconds = time.perf_counter() - began
        with MemoryStore(path, max_entries=arguments.entries) as store:
            print(f'{store.count} entries written in {seconds:.1f} s, {path.stat().st_size / 2**20:.0f} MiB')
            queries = _queries(store, arguments.entries)
            results = {name: _measure(work, arguments.rounds) for name, work in queries.items()}
            slow = [name for name, figures in results.items() if figures['p99_ms'] > LIMIT_MS]
            if arguments.embedding:
                results |= _by_meaning(store, arguments)
    print(f'{"query":44} {"p50":>8} {"p99":>8} {"most":>8}   ms of wall time; CPU p99')
    for name, figures in results.items():
        print(f'{name:44} {figures["p50_ms"]:8.2f} {figures["p99_ms"]:8.2f} {figures["max_ms"]:8.2f}   '
              f'{figures["cpu_p99_ms"]:.2f}')
    print(f'over {LIMIT_MS:g} ms at p99: {", ".join(slow)}' if slow else
          f'every query by words and time took less than {LIMIT_MS:g} ms at p99')
    if arguments.json:
        arguments.json.write_text(json.dumps({'entries': arguments.entries, 'queries': results}, indent=1) + '\n')
    return int(bool(slow))


def note(number: int) -> str:
    """Return the n-th note: common words, and one that is its own."""
    pick = random.Random(number)
    first, second = pick.choice(COLORS), pick.choice(COLORS)
    return (f'a {first} {pick.choice(THINGS)} and a {second} {pick.choice(THINGS)} on the table in the '
            f'{pick.choice(PLACES)}, marked {number}x')


def _fill(path: Path, entries: int) -> None:
    """Write the notes as the robot would, in transactions of many: one every 2 s of its time."""
    MemoryStore(path).close()  # makes the tables
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute('BEGIN')
    for number in range(1, entries + 1):
        text, stamp = note(number), number * 2 * S
        connection.execute('INSERT INTO notes(id, stamp_ns, first_seen_ns, last_seen_ns, frame_number, tf_frame, '
                           'count, bytes, newest_ns) VALUES (?, ?, ?, ?, ?, ?, 1, ?, ?)',
                           (number, stamp, stamp, stamp, number, 'base', len(text), stamp))
        connection.execute('INSERT INTO note_texts(rowid, text) VALUES (?, ?)', (number, text))
    connection.execute('COMMIT')
    connection.close()


def _queries(store: MemoryStore, entries: int) -> dict[str, Callable[[int], object]]:
    """Return what is measured: name -> query of the n-th round."""
    pick = random.Random(1)
    end = entries * 2 * S

    def hour() -> dict[str, int]:
        start = pick.randrange(max(1, end - 3600 * S))
        return {'from_ns': start, 'to_ns': start + 3600 * S}

    return {
        'newest 20': lambda n: store.query(limit=20),
        'a word of nearly every note': lambda n: store.query('table'),
        'two common words': lambda n: store.query(f'{pick.choice(COLORS)} {pick.choice(THINGS)}'),
        'three words, two of them rare together': lambda n: store.query(
            f'{pick.choice(COLORS)} {pick.choice(THINGS)}, {pick.choice(PLACES)}!'),
        'a word of one note': lambda n: store.query(f'{pick.randint(1, entries)}x'),
        'words that no note has': lambda n: store.query('elephant table'),
        'an hour somewhere': lambda n: store.query(**hour()),
        'a common word within an hour somewhere': lambda n: store.query('table', **hour()),
        '1000 entries of a common word': lambda n: store.query('table', limit=1000),
        'what has to do with a question': lambda n: store.recall(
            f'Where did you see the {pick.choice(COLORS)} {pick.choice(THINGS)} on the table before?'),
        'a note is added': lambda n: store.add(note(entries + n), end + n * S, n),
    }


def _by_meaning(store: MemoryStore, arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    from oxygen_ros.memory.embedding import Embedder, encoder_folder
    from oxygen_ros.memory.meaning_index import MeaningIndex
    embedder = Embedder(encoder_folder(arguments.embedding))
    # The time does not depend on what the vectors say: random ones spare embedding all the notes.
    random_state = np.random.default_rng(0)
    for start in range(1, arguments.entries, 5000):
        vectors = random_state.normal(size=(5000, embedder.size)).astype(np.float16)
        store.set_vectors((start + row, embedder.mark + vector.tobytes()) for row, vector in enumerate(vectors))
    index = MeaningIndex(store, embedder)
    one = _measure(lambda n: embedder.embed([note(n)]), min(50, arguments.rounds))
    return {'by meaning': _measure(lambda n: index.query(note(n)), min(50, arguments.rounds)),
            'of that, embedding the words': one}


def _measure(work: Callable[[int], object], rounds: int) -> dict[str, float]:
    """Return quantiles of wall and CPU time, in ms."""
    work(0)  # not measured
    times = []
    for number in range(1, rounds + 1):
        wall, cpu = time.perf_counter(), time.thread_time()
        work(number)
        times.append((time.perf_counter() - wall, time.thread_time() - cpu))
    walls, cpus = np.array(times).T * 1e3
    return {'p50_ms': float(np.median(walls)), 'p99_ms': float(np.quantile(walls, 0.99)), 'max_ms': float(walls.max()),
            'cpu_p99_ms': float(np.quantile(cpus, 0.99))}
