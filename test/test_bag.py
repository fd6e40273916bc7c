"""Reading recordings: whole ones, damaged ones, and those that people have edited."""

import shutil
import sqlite3
from collections import Counter
from pathlib import Path

import pytest
import yaml
from mcap.writer import CompressionType
from mcap.writer import Writer as McapWriter
from rosbags.interfaces import QosReliability

from oxygen_ros.errors import BagError
from oxygen_ros.replay.bag import Bag, shortfalls
from oxygen_ros.replay.recorded import ZSTD_MAGIC
from oxygen_ros.replay.stamps import read_stamp

DATA = Path(__file__).parent / 'data'
CASES = DATA / 'cases'
G1 = [DATA / 'bags' / 'g1_two_cameras', DATA / 'bags' / 'g1_two_cameras_sqlite3']


def read(path):
    """Return all messages of a recording, its notes and what is missing."""
    with Bag(path) as bag:
        messages = list(bag.messages())
        missing = shortfalls(bag.topics, Counter((message.topic, message.type) for message in messages))
        return messages, list(bag.notes), missing


def texts(messages):
    """Return the strings in std_msgs/String messages, or the frame ids of stamped ones."""
    result = []
    for message in messages:
        offset = 4 if message.type == 'std_msgs/msg/String' else 12
        length = int.from_bytes(message.data[offset:offset + 4], 'little')
        result.append(message.data[offset + 4:offset + 3 + length].decode())
    return result


@pytest.mark.parametrize('path', G1, ids=lambda path: path.name)
def test_g1_recording_is_read_completely(path):
    with Bag(path) as bag:
        assert {topic.name: topic.count for topic in bag.topics} == {
            '/robot_description': 1, '/tf_static': 1, '/clock': 150, '/joint_states': 150, '/joint_trajectory': 30,
            '/camera/head/image_raw/compressed': 30, '/camera/front/image_raw/compressed': 30, '/instruction': 2}
        types = {topic.name: topic.type for topic in bag.topics}
        assert types['/joint_states'] == 'sensor_msgs/msg/JointState'
        assert bag.duration_ns == 2_981_000_000
        messages = list(bag.messages())
        assert len(messages) == bag.count == 394
        assert [m.time_ns for m in messages] == sorted(m.time_ns for m in messages)
        assert bag.notes == []


def test_both_storages_of_the_g1_recording_hold_the_same_messages():
    assert read(G1[0])[0] == read(G1[1])[0]


def test_only_wanted_topics_are_read():
    with Bag(G1[0]) as bag:
        assert Counter(message.topic for message in bag.messages(['/instruction', '/nothing'])) == {'/instruction': 2}


@pytest.mark.parametrize('name', ['bag_mcap', 'bag_sqlite3'])
def test_messages_come_by_log_time_not_by_file_order(name):
    messages, _, missing = read(CASES / '23-file-order-is-not-time-order' / name)
    assert texts(messages) == ['left', 'right'] * 10  # the TF frames
    stamps = [read_stamp(message.data) for message in messages]
    assert stamps == sorted(stamps) and missing == []


@pytest.mark.parametrize('name', ['bag_mcap', 'bag_sqlite3'])
def test_equal_log_times_keep_file_order(name):
    messages, _, _ = read(CASES / '26-equal-log-times-keep-file-order' / name)
    assert texts(messages) == [f'{i}-{j}' for i in range(5) for j in range(8)]


def test_cut_off_mcap_gives_the_complete_chunks_and_says_so():
    messages, notes, _ = read(CASES / '78-mcap-cut-off' / 'cut.mcap')
    assert len(messages) >= 67
    assert len(notes) == 1 and 'cut.mcap is truncated' in notes[0]


@pytest.mark.parametrize('size', [2500, 4000, 6000, 7000])
def test_mcap_cut_anywhere_gives_a_prefix(tmp_path, size):
    whole = CASES / '79-no-metadata-yaml' / 'bag_mcap' / 'bag_mcap.mcap'
    cut = tmp_path / 'cut.mcap'
    cut.write_bytes(whole.read_bytes()[:size])
    messages, notes, _ = read(cut)
    expected = read(whole)[0]
    assert messages and messages == expected[:len(messages)]
    assert any('truncated' in note for note in notes)


@pytest.mark.parametrize('path', ['bag_mcap', 'bag_sqlite3', 'bag_mcap/bag_mcap.mcap', 'bag_sqlite3/bag_sqlite3.db3'])
def test_recording_without_metadata_is_read(path):
    messages, notes, missing = read(CASES / '79-no-metadata-yaml' / path)
    assert len(messages) == 20 and missing == []
    assert ['no metadata.yaml' in note for note in notes] == ([True] if '/' not in path else [])


def test_empty_storage_identifier_does_not_matter():
    assert len(read(CASES / '80-storage-identifier-empty' / 'bag')[0]) == 20


@pytest.mark.parametrize('name', ['bag_mcap', 'bag_sqlite3'])
def test_compressed_files_are_read_and_the_folder_stays_as_it_is(name):
    folder = CASES / '81-zstd-whole-file' / name
    before = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    messages, notes, missing = read(folder)
    assert len(messages) == 20 and notes == [] and missing == []
    assert {file.name: file.stat().st_mtime_ns for file in folder.iterdir()} == before


def test_temporary_files_go_when_the_recording_is_closed():
    bag = Bag(CASES / '81-zstd-whole-file' / 'bag_mcap')
    scratch = bag._scratch_folder()
    assert list(scratch.iterdir())
    bag.close()
    assert not scratch.exists()


def test_old_paths_with_the_folder_name_are_found():
    messages, notes, _ = read(CASES / '83-file-paths-with-folder-name' / 'bag')
    assert len(messages) == 20 and notes == []


def test_paths_out_of_the_folder_are_not_followed():
    messages, notes, _ = read(CASES / '83-file-paths-with-folder-name' / 'bag_escape')
    assert len(messages) == 6
    assert any('leads out of the folder' in note for note in notes)


@pytest.mark.parametrize('name, reason', [
    ('bag_zero', '0 bytes'), ('bag_cut', 'malformed'), ('bag_text', 'Git LFS pointer')])
def test_damaged_sqlite_is_refused_with_file_and_reason(name, reason):
    with pytest.raises(BagError) as error:
        Bag(CASES / '86-zero-byte-db3' / name)
    assert f'{name}.db3' in str(error.value) and reason in str(error.value)
    assert '\n' not in str(error.value)


def test_missing_part_is_named_and_counted():
    messages, notes, missing = read(CASES / '87-split-part-missing' / 'bag')
    assert len(messages) == 40
    assert any('bag_1.mcap is missing' in note for note in notes)
    assert missing == ['/left/image_raw: 30 messages promised, 20 delivered',
                       '/joint_states: 30 messages promised, 20 delivered']


def test_unreadable_part_is_named_and_the_others_are_read(tmp_path):
    folder = shutil.copytree(CASES / '87-split-part-missing' / 'bag', tmp_path / 'bag')
    (folder / 'bag_1.mcap').write_bytes(b'')
    messages, notes, missing = read(folder)
    assert len(messages) == 40 and len(missing) == 2
    assert any('bag_1.mcap' in note and '0 bytes' in note for note in notes)


def test_parts_that_overlap_in_time_are_merged():
    messages, _, missing = read(CASES / '88-split-boundary-out-of-order' / 'bag')
    times = [message.time_ns for message in messages]
    assert len(times) == 40 and times == sorted(times) and missing == []


@pytest.mark.parametrize('name', ['bag_mcap', 'bag_sqlite3'])
def test_other_qos_text_in_metadata_loses_no_message(name):
    messages, _, missing = read(CASES / '101-metadata-qos-text-differs' / name)
    assert len(messages) == 20 and missing == []


def test_metadata_qos_wins_over_that_of_the_file():
    with Bag(CASES / '101-metadata-qos-text-differs' / 'bag_mcap') as bag:
        assert {qos.depth for topic in bag.topics for qos in topic.qos} == {1}
    with Bag(CASES / '101-metadata-qos-text-differs' / 'bag_mcap' / 'bag_mcap.mcap') as bag:
        assert {qos.depth for topic in bag.topics for qos in topic.qos} == {10}


@pytest.mark.parametrize('text', ['', 'rosbag2_bagfile_information: 3', '{broken', 'rosbag2_bagfile_information: {}'])
def test_unusable_metadata_is_ignored_or_noted(tmp_path, text):
    folder = shutil.copytree(CASES / '80-storage-identifier-empty' / 'bag', tmp_path / 'bag')
    (folder / 'metadata.yaml').write_text(text)
    messages, notes, missing = read(folder)
    assert len(messages) == 20 and missing == []
    assert text.endswith('{}') or any('metadata.yaml is not usable' in note for note in notes)


def test_unreadable_qos_text_costs_only_the_qos(tmp_path):
    folder = shutil.copytree(CASES / '101-metadata-qos-text-differs' / 'bag_sqlite3', tmp_path / 'bag')
    metadata = folder / 'metadata.yaml'
    metadata.write_text(metadata.read_text().replace('depth: 1', 'deep: 1'))
    messages, notes, _ = read(folder)
    assert len(messages) == 20
    assert any('unreadable QoS for /joint_states' in note for note in notes)


def test_other_serialization_is_refused(tmp_path):
    folder = shutil.copytree(CASES / '80-storage-identifier-empty' / 'bag', tmp_path / 'bag')
    metadata = folder / 'metadata.yaml'
    metadata.write_text(metadata.read_text().replace('serialization_format: cdr', 'serialization_format: other'))
    with pytest.raises(BagError, match="serialized as 'other'"):
        Bag(folder)


def test_write_ahead_log_of_a_killed_recorder_is_read(tmp_path):
    source = CASES / '79-no-metadata-yaml' / 'bag_sqlite3' / 'bag_sqlite3.db3'
    work = shutil.copy(source, tmp_path / 'work.db3')
    killed = tmp_path / 'killed.db3'
    with sqlite3.connect(work) as database:
        database.execute('PRAGMA journal_mode=WAL')
        database.execute('INSERT INTO messages (topic_id, timestamp, data) '
                         'SELECT topic_id, timestamp + 1000000000, data FROM messages')
        database.commit()
        for suffix in ('', '-wal'):
            shutil.copy(f'{work}{suffix}', f'{killed}{suffix}')
    assert len(read(killed)[0]) == 40


def test_messages_compressed_one_by_one_are_decompressed(tmp_path):
    import zstandard
    source = CASES / '79-no-metadata-yaml' / 'bag_sqlite3' / 'bag_sqlite3.db3'
    path = shutil.copy(source, tmp_path / 'bag.db3')
    with sqlite3.connect(path) as database:
        rows = database.execute('SELECT id, data FROM messages').fetchall()
        database.executemany('UPDATE messages SET data = ? WHERE id = ?',
                             [(zstandard.compress(data), identity) for identity, data in rows])
    messages = read(path)[0]
    assert messages == read(source)[0]
    assert not any(message.data.startswith(ZSTD_MAGIC) for message in messages)


def test_damage_in_the_middle_is_noted_and_counted(tmp_path):
    folder = shutil.copytree(CASES / '80-storage-identifier-empty' / 'bag', tmp_path / 'bag')
    file = folder / 'bag.mcap'
    content = bytearray(file.read_bytes())
    content[3000:3100] = b'\xff' * 100
    file.write_bytes(content)
    messages, notes, missing = read(folder)
    assert len(messages) < 20 and missing
    assert any('bag.mcap is' in note and 'damaged' in note for note in notes)


def test_types_of_early_recordings_get_their_full_name(tmp_path):
    path = shutil.copy(CASES / '79-no-metadata-yaml' / 'bag_sqlite3' / 'bag_sqlite3.db3', tmp_path / 'bag.db3')
    with sqlite3.connect(path) as database:
        database.execute("UPDATE topics SET type = replace(type, '/msg/', '/')")
    assert {message.type for message in read(path)[0]} == {'sensor_msgs/msg/Image', 'sensor_msgs/msg/JointState'}


def test_recording_without_messages_says_so(tmp_path):
    path = shutil.copy(CASES / '79-no-metadata-yaml' / 'bag_sqlite3' / 'bag_sqlite3.db3', tmp_path / 'bag.db3')
    with sqlite3.connect(path) as database:
        database.execute('DELETE FROM messages')
    messages, notes, missing = read(path)
    assert messages == [] and missing == [] and notes == ['the recording holds no messages']


def test_missing_path_says_what_was_looked_for(tmp_path):
    with pytest.raises(BagError) as error:
        Bag(tmp_path / 'nothing')
    assert str(tmp_path / 'nothing') in str(error.value) and '.mcap or .db3' in str(error.value)
    with pytest.raises(BagError, match='cannot read'):
        Bag('x' * 5000)  # the system refuses even to look


def test_folder_above_a_recording_proposes_the_recording(tmp_path):
    shutil.copytree(CASES / '80-storage-identifier-empty' / 'bag', tmp_path / 'walk')
    with pytest.raises(BagError, match='did you mean .*walk'):
        Bag(tmp_path)


def test_other_files_are_refused_with_their_kind(tmp_path):
    for content, reason in ((b'#ROSBAG V2.0\n', 'rosbags-convert'), (b'hello world', 'neither mcap nor sqlite3')):
        file = tmp_path / 'some.bag'
        file.write_bytes(content)
        with pytest.raises(BagError, match=reason):
            Bag(file)


QOS_OLD = '- history: 3\n  depth: 0\n  reliability: 2\n  durability: 2\n' + ''.join(
    f'  {name}:\n    sec: 0\n    nsec: 0\n' for name in ('deadline', 'lifespan')) + (
    '  liveliness: 1\n  liveliness_lease_duration:\n    sec: 0\n    nsec: 0\n'
    '  avoid_ros_namespace_conventions: false')
QOS_NEW = [{'history': 'unknown', 'depth': 0, 'reliability': 'best_effort', 'durability': 'volatile',
            'deadline': {'sec': 0, 'nsec': 0}, 'lifespan': {'sec': 0, 'nsec': 0}, 'liveliness': 'automatic',
            'liveliness_lease_duration': {'sec': 0, 'nsec': 0}, 'avoid_ros_namespace_conventions': False}]


def metadata(version, storage, file):
    """Return metadata.yaml as rosbag2 of that version writes it, for the two topics of case 79."""
    def topic(name, type_, count):
        entry = {'name': name, 'type': type_, 'serialization_format': 'cdr'}
        if version >= 4:
            entry['offered_qos_profiles'] = QOS_NEW if version >= 9 else QOS_OLD
        if version >= 7:
            entry['type_description_hash'] = 'RIHS01_' + 64 * '0'
        return {'topic_metadata': entry, 'message_count': count}

    content = {
        'version': version, 'storage_identifier': storage,
        'relative_file_paths': [f'bag/{file}' if version < 4 else file],
        'duration': {'nanoseconds': 900_000_000}, 'starting_time': {'nanoseconds_since_epoch': 1_700_000_000 * 10**9},
        'message_count': 20, 'topics_with_message_count': [
            topic('/left/image_raw', 'sensor_msgs/msg/Image', 10),
            topic('/joint_states', 'sensor_msgs/msg/JointState', 10)]}
    if version >= 3:
        content |= {'compression_format': '', 'compression_mode': ''}
    if version >= 5:
        content['files'] = [{'path': file, 'starting_time': content['starting_time'],
                             'duration': content['duration'], 'message_count': 20}]
    if version >= 6:
        content['custom_data'] = None
    if version >= 8:
        content['ros_distro'] = 'rolling'
    return yaml.safe_dump({'rosbag2_bagfile_information': content})


@pytest.mark.parametrize('storage', ['mcap', 'sqlite3'])
@pytest.mark.parametrize('version', range(1, 10))
def test_metadata_of_every_version_is_understood(tmp_path, version, storage):
    (source,) = (CASES / '79-no-metadata-yaml' / f'bag_{storage}').iterdir()
    shutil.copy(source, tmp_path)
    (tmp_path / 'metadata.yaml').write_text(metadata(version, storage, source.name))
    with Bag(tmp_path) as bag:
        assert bag.notes == [] and bag.count == len(list(bag.messages())) == 20
        assert {topic.name: topic.promised for topic in bag.topics} == {'/left/image_raw': 10, '/joint_states': 10}
        if version >= 4:
            assert {qos.reliability for topic in bag.topics for qos in topic.qos} == {QosReliability.BEST_EFFORT}
        assert {bool(topic.type_hash) for topic in bag.topics} == {version >= 7}


@pytest.mark.parametrize('compression', CompressionType)
def test_chunks_are_decompressed(tmp_path, compression):
    path = tmp_path / 'bag.mcap'
    with path.open('wb') as file:
        writer = McapWriter(file, compression=compression, chunk_size=300)
        writer.start('ros2')
        schema = writer.register_schema('std_msgs/msg/String', 'ros2msg', b'string data')
        channel = writer.register_channel('/text', 'cdr', schema)
        for number in range(50):
            word = f'{number:04}'.encode() + b'\0'
            writer.add_message(channel, number, b'\0\1\0\0' + len(word).to_bytes(4, 'little') + word, number)
        writer.finish()
    messages, notes, _ = read(path)
    assert texts(messages) == [f'{number:04}' for number in range(50)] and notes == []


def test_topics_of_unknown_types_and_service_events_are_listed(tmp_path):
    path = tmp_path / 'bag.mcap'
    with path.open('wb') as file:
        writer = McapWriter(file)
        writer.start('ros2')
        for topic, type_ in (('/mine', 'my_msgs/msg/Thing'), ('/ask/_service_event', 'oxygen_ros/srv/Ask_Event')):
            schema = writer.register_schema(type_, 'ros2msg', b'uint8 x')
            writer.add_message(writer.register_channel(topic, 'cdr', schema), 1, b'\0\1\0\0\7', 1)
        writer.finish()
    with Bag(path) as bag:
        assert {topic.name: (topic.type, topic.count) for topic in bag.topics} == {
            '/mine': ('my_msgs/msg/Thing', 1), '/ask/_service_event': ('oxygen_ros/srv/Ask_Event', 1)}
        assert len(list(bag.messages())) == 2


def test_foreign_channels_beside_ros_are_left_out_and_named(tmp_path):
    path = tmp_path / 'bag.mcap'
    with path.open('wb') as file:
        writer = McapWriter(file)
        writer.start('ros2')
        schema = writer.register_schema('std_msgs/msg/String', 'ros2msg', b'string data')
        other = writer.register_schema('foxglove.Log', 'jsonschema', b'{}')
        writer.add_message(writer.register_channel('/text', 'cdr', schema), 1, b'\0\1\0\0\3\0\0\0hi\0', 1)
        writer.add_message(writer.register_channel('/log', 'json', other), 2, b'{"a": 1}', 2)
        writer.add_message(writer.register_channel('/bare', 'json', 0), 3, b'{}', 3)
        writer.finish()
    messages, notes, missing = read(path)
    assert [message.topic for message in messages] == ['/text'] and texts(messages) == ['hi'] and missing == []
    assert any(note.startswith('/log is left out') and "'json'" in note for note in notes)
    assert any(note.startswith('/bare is left out') for note in notes)
