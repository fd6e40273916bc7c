"""What the robot remembers: merging, searching, forgetting, several threads, damage, a full disk, a killed process."""

import json
import shutil
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from oxygen_ros.errors import ConfigError, OxygenError
from oxygen_ros.memory.database import APPLICATION_ID, SCHEMA_VERSION, MemoryStoreError, move_aside
from oxygen_ros.memory.store import Entry, MemoryStore

CASES = Path(__file__).parent / 'data' / 'cases'
S = 1_000_000_000


@pytest.fixture
def path(tmp_path):
    return tmp_path / 'robot' / 'memory.db'


@pytest.fixture
def store(path):
    with MemoryStore(path) as store:
        yield store


def read(case, name):
    return json.loads((CASES / case / name).read_text())


def texts(entries):
    return [entry.text for entry in entries]


def test_note_comes_back_with_all_its_fields(store, path):
    stamp = 1_700_000_000_123_456_789
    entry = store.add('a red cup on the table', stamp, 7, 'pelvis')
    assert entry == Entry(1, 'a red cup on the table', stamp, 7, stamp, stamp, 1, 'pelvis')
    assert store.query() == [entry]
    store.close()
    with MemoryStore(path) as again:
        assert again.warning == ''
        assert again.query() == [entry]
        assert again.add('next', stamp, 8).entry_id > entry.entry_id


def test_equal_notes_in_a_row_are_merged(store):
    first = store.add('a cup', 10 * S, 1)
    store.add('a cup', 12 * S, 2)
    merged = store.add('a cup', 11 * S, 3)  # finished late: the interval is right all the same
    assert merged.entry_id == first.entry_id
    assert (merged.first_seen_ns, merged.last_seen_ns, merged.count) == (10 * S, 12 * S, 3)
    assert (merged.stamp_ns, merged.frame_number) == (11 * S, 3)
    store.add('no cup', 13 * S, 4)
    store.add('a cup', 14 * S, 5)
    assert [(entry.text, entry.count) for entry in store.query()] == [('a cup', 1), ('no cup', 1), ('a cup', 3)]
    assert store.count == 3


def test_merging_goes_on_after_a_restart(store, path):
    store.add('a cup', 1, 1)
    store.close()
    with MemoryStore(path) as again:
        assert again.add('a cup', 2, 2).count == 2


def test_clock_that_goes_back_starts_a_new_entry_which_is_the_newest(store):
    store.add('a cup', 500 * S, 100)
    entry = store.add('a cup', 3 * S, 1)
    assert (entry.count, entry.first_seen_ns, entry.last_seen_ns) == (1, 3 * S, 3 * S)
    assert [entry.stamp_ns for entry in store.query()] == [3 * S, 500 * S]
    assert [entry.stamp_ns for entry in store.query(to_ns=10 * S)] == [3 * S]
    assert [entry.stamp_ns for entry in store.query(from_ns=10 * S)] == [500 * S]


def test_all_words_must_match_in_any_order_case_and_accent(store):
    store.add('the Café is left of the box', 1, 1)
    store.add('the box is open', 2, 2)
    assert texts(store.query('box')) == ['the box is open', 'the Café is left of the box']
    assert texts(store.query('BOX  cafe')) == ['the Café is left of the box']
    assert store.query('box closed') == []
    assert store.query('bo') == []


def test_user_words_with_punctuation_are_only_words(store):
    case = '70-search-text-with-punctuation'
    ids = {entry['id']: store.add(entry['text'], 1, 1).entry_id for entry in read(case, 'entries.json')}
    for item in read(case, 'queries.json'):
        found = [entry.entry_id for entry in store.query(item['query'])]
        assert {ids[wanted] for wanted in item['must_contain'] or []} <= set(found), item
    assert store.query('"') == store.query('(') == store.query('*') == []
    assert len(store.query('')) == len(store.query('  ')) == len(ids)
    for words in ('text:cup', 'NEAR(a b)', '{text} : a', 'a" OR "b', "'; DROP TABLE notes; --", 'a\0c', 'bad \ud83d'):
        assert store.query(words) == []


def test_too_many_words_are_refused(store):
    with pytest.raises(MemoryStoreError, match='100 words are too many to search for: at most 64'):
        store.query('word ' * 100)


def test_query_by_time_window(store):
    for i in range(10):
        store.add(f'note {i}', i * S, i)
    store.add('note 9', 20 * S, 20)  # entry 9 lasts from 9 s to 20 s
    assert texts(store.query(from_ns=3 * S, to_ns=5 * S)) == ['note 5', 'note 4', 'note 3']
    assert texts(store.query('note', from_ns=3 * S, to_ns=5 * S, limit=2)) == ['note 5', 'note 4']
    assert texts(store.query(from_ns=15 * S, to_ns=16 * S)) == ['note 9']
    assert texts(store.query('9', from_ns=15 * S)) == ['note 9']
    assert texts(store.query(to_ns=0)) == ['note 0']
    assert store.query(from_ns=21 * S) == store.query(to_ns=-1) == store.query('note', from_ns=21 * S) == []
    assert store.query(from_ns=5 * S, to_ns=3 * S) == []


def test_time_windows_are_exact_although_the_clock_jumps(path):
    generator = np.random.default_rng(0)
    with MemoryStore(path, max_entries=150) as store:
        for stamp in np.cumsum(generator.integers(-40, 45, 300)).tolist():
            store.add(f'note {generator.integers(4)}', stamp, 1)
        everything = store.query(limit=1000)
        assert len(everything) == 150 and max(entry.count for entry in everything) > 1
        for begin, length in zip(generator.integers(-400, 800, 100).tolist(), generator.integers(0, 100, 100).tolist()):
            for words in ('', '2'):
                expected = [entry for entry in everything if words in entry.text
                            and entry.last_seen_ns >= begin and entry.first_seen_ns <= begin + length]
                assert store.query(words, begin, begin + length, 1000) == expected


def test_limit_is_kept(store):
    for i in range(30):
        store.add(str(i), i, i)
    assert texts(store.query(limit=2)) == ['29', '28']
    assert len(store.query()) == 20
    assert len(store.query(limit=2**32 - 1)) == 30
    with pytest.raises(MemoryStoreError, match='limit 0'):
        store.query(limit=0)


def test_newest_entries_are_kept_when_times_tie(path):
    case = '71-newest-entries-kept-when-times-tie'
    with MemoryStore(path, max_entries=10) as store:
        for entry in read(case, 'entries.json'):
            store.add(entry['text'], entry['stamp'] * S, entry['n'])
        assert texts(reversed(store.query())) == read(case, 'case.json')['expected']['kept']
        assert texts(store.query(limit=3)) == ['msg11', 'msg10', 'msg9']
        assert store.query('msg1') == []  # the index forgets, too


def test_old_entries_are_forgotten(path):
    with MemoryStore(path, max_age_ns=10 * S) as store:
        for second in (0, 5, 11, 15, 16):
            store.add(f'at {second}', second * S, second)
        assert texts(store.query()) == ['at 16', 'at 15', 'at 11']
        store.add('after a long pause', 1000 * S, 100)
        assert texts(store.query()) == ['after a long pause']


def test_text_is_kept_within_its_bytes_and_the_newest_entry_stays(path):
    with MemoryStore(path, max_bytes=100) as store:
        for i in range(20):
            store.add(f'{i:02} ' + 'é' * 10, i, i)  # 23 bytes each
        assert texts(store.query()) == [f'{i:02} ' + 'é' * 10 for i in (19, 18, 17, 16)]
        store.add('x' * 1000, 20, 20)
        assert texts(store.query()) == ['x' * 1000]
        store.add('small', 21, 21)
        assert texts(store.query()) == ['small']


def test_a_lowered_limit_is_reached_step_by_step(store, path):
    for i in range(250):
        store.add(str(i), i, i)
    store.close()
    with MemoryStore(path, max_entries=10) as again:
        for i in range(3):
            again.add(f'new {i}', i, i)
        assert again.count == 10


def test_several_threads_use_one_store(store):
    load = read('72-memory-used-from-several-threads', 'load.json')
    ids, errors = [], []

    def work(thread):
        try:
            for i in range(load['writes_per_thread']):
                ids.append(store.add(f'thread {thread} note {i}', i, i).entry_id)
                assert store.query(f'thread {thread}')
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(load['threads'])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(set(ids)) == len(ids) == store.count == load['threads'] * load['writes_per_thread']


def test_two_stores_share_a_file(store, path):
    with MemoryStore(path) as other:
        store.add('from one', 1, 1)
        other.add('from two', 2, 2)
        assert texts(store.query()) == texts(other.query()) == ['from two', 'from one']
        assert store.count == 2


@pytest.mark.parametrize('name', ['half.db', 'page_zeroed.db', 'text.db'])
def test_damaged_file_is_moved_aside_and_kept(path, name):
    path.parent.mkdir()
    damaged = (CASES / '74-database-file-damaged' / name).read_bytes()
    path.write_bytes(damaged)
    with MemoryStore(path) as store:
        aside, = path.parent.glob('memory.db.damaged-*')
        assert str(path) in store.warning and str(aside) in store.warning and '\n' not in store.warning
        assert aside.read_bytes() == damaged
        assert store.add('new start', 1, 1).entry_id == 1
    with MemoryStore(path) as store:
        assert store.warning == ''
        assert texts(store.query()) == ['new start']


def test_every_damaged_file_is_kept(path):
    for _ in range(3):
        path.parent.mkdir(exist_ok=True)
        path.write_text('no database, but long enough to be mistaken for one. ' * 40)
        MemoryStore(path).close()
    assert len(list(path.parent.glob('memory.db.damaged-*'))) == 3


def test_journal_of_a_damaged_file_goes_with_it(tmp_path):
    for suffix in ('', '-wal', '-shm'):
        (tmp_path / f'memory.db{suffix}').write_text(suffix)
    aside = move_aside(tmp_path / 'memory.db')
    assert [Path(f'{aside}{suffix}').read_text() for suffix in ('', '-wal', '-shm')] == ['', '-wal', '-shm']
    assert len(list(tmp_path.iterdir())) == 3


def test_empty_file_is_a_new_memory(path):
    path.parent.mkdir()
    shutil.copy(CASES / '74-database-file-damaged' / 'zero.db', path)
    with MemoryStore(path) as store:
        assert (store.warning, store.query(), store.count) == ('', [], 0)


def test_database_of_another_program_is_left_alone(path):
    path.parent.mkdir()
    shutil.copyfile(CASES / '74-database-file-damaged' / 'foreign_schema.db', path)
    before = path.read_bytes()
    with pytest.raises(ConfigError, match='memory.db is a database of another program: choose another path'):
        MemoryStore(path)
    assert path.read_bytes() == before
    assert [found.name for found in path.parent.iterdir()] == ['memory.db']


def test_file_is_marked_and_a_newer_version_is_refused(store, path):
    store.close()
    connection = sqlite3.connect(path)
    for name, value in (('application_id', APPLICATION_ID), ('user_version', SCHEMA_VERSION), ('journal_mode', 'wal')):
        assert connection.execute(f'PRAGMA {name}').fetchone()[0] == value
    connection.execute(f'PRAGMA user_version = {SCHEMA_VERSION + 1}')
    connection.close()
    with pytest.raises(ConfigError, match='has version 3, this program knows 2'):
        MemoryStore(path)


def test_path_that_cannot_be_a_file_is_refused_in_one_line(tmp_path):
    (tmp_path / 'file').write_text('')
    for wrong in (tmp_path, tmp_path / 'file' / 'memory.db'):
        with pytest.raises(MemoryStoreError, match='cannot be opened') as error:
            MemoryStore(wrong)
        assert '\n' not in str(error.value)
        assert isinstance(error.value, OxygenError)


def test_text_that_looks_like_sql_is_only_text(store):
    entries = read('75-memory-text-with-sql', 'entries.json')
    for i, text in enumerate(entries):
        entry = store.add(text, i, i)
        assert entry.text == text.replace('\0', '\ufffd')
    assert store.count == len(entries) == 10
    assert texts(reversed(store.query())) == [text.replace('\0', '\ufffd') for text in entries]


def test_lone_surrogates_are_replaced_and_pairs_are_joined(store):
    for i, text in enumerate(read('76-lone-surrogate-in-text', 'entries.json')):
        store.add(text, i, i).text.encode()
    store.add('pair \ud83d\ude00', 9, 9)
    assert texts(reversed(store.query())) == ['good one', 'bad \ufffd half', '\ufffd', 'good two', 'pair \U0001f600']


@pytest.mark.parametrize('text', ['', ' \n\t'])
def test_blank_notes_are_refused(store, text):
    with pytest.raises(MemoryStoreError, match='blank'):
        store.add(text, 1, 1)


def test_stamps_are_integers_of_64_bits(store):
    assert store.add('numpy', np.int64(2**62 + 1), np.uint32(3)).stamp_ns == 2**62 + 1
    assert store.query(from_ns=np.int64(2**62 + 1))[0].frame_number == 3
    with pytest.raises(MemoryStoreError, match='stamp_ns 9223372036854775808 does not fit'):
        store.add('far', 2**63, 1)
    with pytest.raises(TypeError):
        store.add('float', 1.5e18, 1)
    assert store.count == 1


def test_full_disk_is_one_clear_error_and_what_is_there_can_be_read(store):
    kept = store.add('kept', 1, 1)
    pages = store._connection.execute('PRAGMA page_count').fetchone()[0]
    store._connection.execute(f'PRAGMA max_page_count = {pages}')  # the disk ends here
    with pytest.raises(MemoryStoreError, match=r'cannot add a note \(database or disk is full\): check free space'):
        store.add('x' * 100_000, 2, 2)
    assert store.query() == [kept]
    store._connection.execute('PRAGMA max_page_count = 1000000')
    assert store.add('room again', 3, 3).count == 1
    assert store.count == 2


def test_file_locked_by_another_program_is_one_clear_error(path):
    with MemoryStore(path, busy_timeout=0.01) as store:
        store.add('before', 1, 1)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute('BEGIN IMMEDIATE')
        with pytest.raises(MemoryStoreError, match='cannot add a note .*locked.* other programs that use it'):
            store.add('meanwhile', 2, 2)
        assert texts(store.query()) == ['before']  # reading goes on
        other.execute('ROLLBACK')
        store.add('after', 3, 3)
        assert texts(store.query()) == ['after', 'before']
        other.close()


def test_file_that_is_damaged_while_open_is_one_clear_error(store, path):
    for i in range(100):
        store.add(f'note {i} ' + 'x' * 1000, i, i)
    store._connection.execute('PRAGMA wal_checkpoint(TRUNCATE)')
    store._connection.execute('PRAGMA cache_size = 0')
    with path.open('r+b') as file:
        file.seek(4096)
        file.write(b'\xff' * 4096 * 20)
    with pytest.raises(MemoryStoreError, match='a restart moves a damaged file aside'):
        for i in range(100):
            store.query(str(i), limit=1000)
            store.add(f'more {i}', i, i)


def test_file_that_is_removed_while_open_is_one_clear_error(store, path):
    store.add('a red cup', 1, 1)
    path.rename(path.with_name('elsewhere.db'))
    with pytest.raises(MemoryStoreError, match='removed or replaced'):
        store.add('a blue cup', 2, 2)
    path.with_name('elsewhere.db').rename(path)
    store.add('a green cup', 3, 3)
    assert texts(store.query()) == ['a green cup', 'a red cup']


def test_call_that_fails_half_way_does_not_spoil_the_next(store):
    for i in range(100):
        store.add(str(i), i, i)
    store._connection.set_progress_handler(lambda: True, 100)  # interrupts what takes longer
    with pytest.raises(MemoryStoreError, match=r'cannot search memory \(interrupted\)'):
        store.query(limit=100)
    store._connection.set_progress_handler(None, 0)
    store.add('after', 100, 100)
    assert len(store.query(limit=200)) == 101


def test_closed_store_says_so(store):
    store.close()
    store.close()
    with pytest.raises(MemoryStoreError, match='closed: cannot add a note'):
        store.add('late', 1, 1)
    with pytest.raises(MemoryStoreError, match='closed: cannot search memory'):
        store.query()


def test_notes_survive_a_killed_process(path):
    program = ('import sys\nfrom oxygen_ros.memory.store import MemoryStore\nstore = MemoryStore(sys.argv[1])\n'
               'for i in range(10**9):\n    print(store.add(f"note {i}", i, i).entry_id, flush=True)\n')
    child = subprocess.Popen([sys.executable, '-c', program, str(path)], stdout=subprocess.PIPE, text=True)
    acknowledged = [int(child.stdout.readline()) for _ in range(100)]
    child.kill()
    acknowledged += [int(line) for line in child.communicate()[0].splitlines(keepends=True) if line.endswith('\n')]
    with MemoryStore(path) as store:
        assert store.warning == ''
        assert store.count in (len(acknowledged), len(acknowledged) + 1)
        newest = store.query(limit=2)
        assert newest[-1].entry_id in acknowledged
        assert store.query(f'"note {acknowledged[50] - 1}"')[0].entry_id == acknowledged[50]
        assert store.add('after the kill', 1, 1).entry_id > acknowledged[-1]
