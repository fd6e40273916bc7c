"""Memory beside the robot's work: what it keeps, what it recalls, and what a bad disk or file does to it."""

import io
import sqlite3
import threading

import numpy as np
import pytest
from PIL import Image

from oxygen_ros.errors import ConfigError
from oxygen_ros.memory import keeper as keeper_module
from oxygen_ros.memory.database import MemoryStoreError
from oxygen_ros.memory.embedding import encoder_folder
from oxygen_ros.memory.entry import Pose
from oxygen_ros.memory.keeper import MemoryKeeper
from oxygen_ros.memory.recall import key_words
from oxygen_ros.memory.store import MemoryStore

IMAGE = np.full((60, 120, 3), (200, 30, 60), np.uint8)
POSE = Pose('map', (1.0, -2.0, 0.5), (0.0, 0.0, 0.6, 0.8))


class Keeping:
    """A keeper on a file, and what it reports."""

    def __init__(self, path, **options):
        self.path, self.reports = path, []
        self.keeper = MemoryKeeper(path, lambda: MemoryStore(path, busy_timeout=0.01), self.reports.append, **options)

    def add(self, text, stamp_ns=1, **details):
        return self.keeper.add(text, stamp_ns, 7, 'pelvis', **details).result(10)

    def texts(self, words='', **options):
        return [entry.text for entry in self.keeper.query(words, None, None, 20, **options).result(10)]

    def recall(self, question, limit=5):
        return [entry.text for entry in self.keeper.recall(question, limit).result(10)]


@pytest.fixture
def make(tmp_path):
    made = []

    def make(path=tmp_path / 'memory.db', **options):
        made.append(Keeping(path, **options))
        return made[-1]

    yield make
    for keeping in made:
        keeping.keeper.close()


# -- what is kept ----------------------------------------------------------------------------------------------------

def test_picture_and_pose_are_kept_with_a_note_and_handed_out_when_asked_for(make):
    keeping = make(side=32)
    entry = keeping.add('a cup', image=IMAGE, pose=POSE)
    picture = Image.open(io.BytesIO(entry.thumbnail))
    assert (picture.format, picture.size, entry.pose) == ('JPEG', (32, 16), POSE)
    assert np.abs(np.asarray(picture).astype(int) - (200, 30, 60)).max() < 12
    slim, = keeping.keeper.query('', None, None, 5).result(10)
    assert (slim.thumbnail, slim.pose) == (b'', POSE)
    full, = keeping.keeper.query('', None, None, 5, thumbnails=True).result(10)
    assert full == entry


def test_merged_note_keeps_picture_and_pose_of_its_newest_observation(make):
    keeping = make(side=32)
    keeping.add('a cup', 1, image=IMAGE, pose=POSE)
    entry = keeping.add('a cup', 2)
    assert (entry.count, entry.thumbnail, entry.pose) == (2, b'', None)
    entry = keeping.add('a cup', 3, image=255 - IMAGE, pose=Pose('odom', (0, 0, 0)))
    assert (entry.count, entry.pose.frame) == (3, 'odom') and entry.thumbnail


def test_no_picture_is_kept_when_none_is_wanted(make):
    assert make(side=0).add('a cup', image=IMAGE).thumbnail == b''


def test_pictures_count_as_bytes_and_go_with_their_entry(tmp_path):
    with MemoryStore(tmp_path / 'memory.db', max_bytes=1000) as store:
        for number in range(5):
            store.add(f'note {number}', number, number, thumbnail=b'x' * 400)
        assert [entry.text for entry in store.query()] == ['note 4', 'note 3']
        store.add('note 4', 5, 5)  # without a picture there is room again
        store.add('note 5', 6, 6, thumbnail=b'x' * 500)
        assert store.count == 3
        assert store._connection.execute('SELECT count(*) FROM details').fetchone()[0] == 3


def test_memory_of_version_1_is_taken_over(tmp_path):
    path = tmp_path / 'memory.db'
    MemoryStore(path).close()
    old = sqlite3.connect(path)
    old.executescript('DROP TABLE details; DROP TABLE jumps; DROP TRIGGER note_resized; '
                      'DROP TRIGGER note_added_late; DROP TRIGGER note_with_details_deleted; '
                      'PRAGMA user_version = 1;')
    for number, (text, stamp, newest) in enumerate((('a cup', 5, 5), ('a dog', 3, 5), ('a cat', 9, 9)), 1):
        old.execute('INSERT INTO notes VALUES (?, ?, 1, ?, ?, ?, 1, 5, "")', (number, stamp, stamp, stamp, newest))
        old.execute('INSERT INTO note_texts(rowid, text) VALUES (?, ?)', (number, text))
    old.commit()
    old.close()
    with MemoryStore(path) as store:
        assert store.warning == '' and store.query('cup')[0].stamp_ns == 5
        assert [entry.text for entry in store.query(to_ns=4)] == ['a dog']  # the clock had gone back
        assert store.add('a box', 10, 2, pose=POSE).pose == POSE


# -- what is recalled ------------------------------------------------------------------------------------------------

def test_question_recalls_the_notes_that_share_its_rare_words(make):
    keeping = make()
    for number, text in enumerate(['a red cup on the table', *[f'the table, part {n}' for n in range(150)],
                                   'a dog at the door', 'two cups in the sink']):
        keeping.add(text, number)
    assert keeping.recall('What did you see on the table before?', 1) == ['the table, part 149']
    assert keeping.recall('Where was the red cup on the table?')[:2] == [
        'a red cup on the table', 'two cups in the sink']
    assert keeping.recall('Were there dogs?') == ['a dog at the door']
    assert keeping.recall('What is it?') == keeping.recall('?!') == keeping.recall('') == []
    assert keeping.recall('elephants') == []


def test_questions_are_only_words(make):
    keeping = make()
    keeping.add('a cup')
    for question in ('"cup" OR NEAR(*', 'cup* AND NOT', "cup'; DROP TABLE notes; --", 'cup \ud800\0'):
        assert keeping.recall(question) == ['a cup'], question
    assert len(key_words(' '.join(f'word{n}' for n in range(500)))) < 20


class Letters:
    """Stands in for a sentence encoder: texts are alike that have the same letters."""

    mark, size = b'test', 26

    def embed(self, texts):
        counts = np.array([[text.casefold().count(chr(97 + n)) for n in range(26)] for text in texts], np.float32)
        return counts / np.maximum(1e-9, np.linalg.norm(counts, axis=1, keepdims=True))


def test_search_by_meaning_gives_the_nearest_first_within_its_time(make):
    keeping = make(embedder=Letters())
    for number, text in enumerate(['abc', 'abd', 'xyz', 'xxyyzz', 'abcc']):
        keeping.add(text, number * 10)
    assert keeping.texts('cab', by_meaning=True)[:3] == ['abc', 'abcc', 'abd']
    found = keeping.keeper.query('cab', 5, 30, 2, by_meaning=True).result(10)
    assert [entry.text for entry in found] == ['abd', 'xyz']
    assert set(keeping.recall('zyx')) == {'xyz', 'xxyyzz'}  # nothing that is not like it


def test_notes_from_before_the_encoder_and_of_another_one_are_found_too(make, tmp_path):
    make().add('abc')
    other = Letters()
    other.mark = b'else'
    make(embedder=other).texts('x', by_meaning=True)
    keeping = make(embedder=Letters())
    keeping.keeper.query('', None, None, 1).result(10)  # behind what catches up
    assert keeping.texts('cab', by_meaning=True) == ['abc']


def test_deleted_notes_are_not_found_by_meaning(tmp_path):
    path = tmp_path / 'memory.db'
    keeper = MemoryKeeper(path, lambda: MemoryStore(path, max_entries=3), print, embedder=Letters())
    for number in range(1100):  # the index grows
        keeper.add('abc' + 'd' * (number % 7), number, 1).result(10)
    found = keeper.query('abc', None, None, 5, by_meaning=True).result(10)
    assert sorted(entry.stamp_ns for entry in found) == [1097, 1098, 1099]
    keeper.close()


def test_search_by_meaning_without_an_encoder_says_what_to_set(make):
    with pytest.raises(MemoryStoreError, match=r'set the parameter memory\.embedding'):
        make().texts('cup', by_meaning=True)
    with pytest.raises(ConfigError, match='neither one of .* nor a folder'):
        encoder_folder('/no/such/folder')


# -- what goes wrong -------------------------------------------------------------------------------------------------

def test_locked_file_at_the_start_is_told_and_tried_again(make, tmp_path):
    MemoryStore(tmp_path / 'memory.db').close()
    other = sqlite3.connect(tmp_path / 'memory.db', isolation_level=None)
    other.execute('PRAGMA locking_mode = EXCLUSIVE')
    other.execute('BEGIN EXCLUSIVE')
    keeping = make()
    assert len(keeping.reports) == 1 and 'locked' in keeping.reports[0] and 'tried again' in keeping.reports[0]
    with pytest.raises(MemoryStoreError, match='locked'):
        keeping.add('meanwhile')
    other.execute('ROLLBACK')
    other.close()
    keeping.add('after')
    assert keeping.texts() == ['after']


def test_file_that_is_damaged_while_open_is_moved_aside_and_memory_goes_on(make, tmp_path):
    keeping = make()
    for number in range(50):
        keeping.add(f'note {number} ' + 'x' * 1000)
    keeping.keeper._store._connection.execute('PRAGMA wal_checkpoint(TRUNCATE)')
    keeping.keeper._store._connection.execute('PRAGMA cache_size = 0')
    with keeping.path.open('r+b') as file:
        file.seek(4096)
        file.write(b'\xff' * 4096 * 20)
    keeping.add('after the damage')
    assert keeping.texts() == ['after the damage']
    assert any('was damaged' in report and 'kept as' in report for report in keeping.reports)
    assert any('opened anew' in report for report in keeping.reports)
    assert len(list(tmp_path.glob('memory.db.damaged-*'))) >= 1


def test_file_that_is_removed_while_open_is_begun_anew_and_told(make):
    keeping = make()
    keeping.add('before')
    for path in keeping.path.parent.iterdir():
        path.unlink()
    keeping.add('after')
    assert keeping.texts() == ['after'] and keeping.path.is_file()
    assert 'removed or replaced' in keeping.reports[0] and 'opened anew' in keeping.reports[0]


def test_full_disk_fails_the_call_alone(make):
    keeping = make()
    keeping.add('kept')
    connection = keeping.keeper._store._connection
    connection.execute(f'PRAGMA max_page_count = {connection.execute("PRAGMA page_count").fetchone()[0]}')
    with pytest.raises(MemoryStoreError, match='is full'):
        keeping.add('x' * 100_000)
    assert keeping.texts() == ['kept']
    connection.execute('PRAGMA max_page_count = 1000000')
    keeping.add('room again')
    assert keeping.reports == []


def test_disk_that_hangs_does_not_collect_calls_without_end(make, monkeypatch):
    monkeypatch.setattr(keeper_module, 'MOST_WAITING', 5)
    keeping, go_on = make(), threading.Event()
    keeping.keeper._thread.submit(go_on.wait, 30)
    calls = [keeping.keeper.add(f'note {number}', 1, 1) for number in range(8)]
    assert [call.done() for call in calls] == [False] * 5 + [True] * 3
    with pytest.raises(MemoryStoreError, match='the disk is too slow'):
        calls[-1].result()
    go_on.set()
    calls[4].result(10)
    keeping.add('again')


def test_many_threads_add_and_search_at_the_same_time(make):
    keeping, errors = make(side=16), []

    def work(number):
        try:
            for count in range(10):
                keeping.add(f'note {number} {count}', count, image=IMAGE)
                assert keeping.texts(f'{number} {count}')
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and keeping.keeper._store.count == 80
