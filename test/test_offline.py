"""A recording through the whole suite in lockstep: deterministic, at its own time, and readable by others."""

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from mcap.reader import make_reader
from rosbags.typesys import Stores, get_types_from_msg, get_typestore
from small_policy import SIZES, small_config

from oxygen_ros.cli import main
from oxygen_ros.errors import ConfigError
from oxygen_ros.offline.settings import node_values, split_rules
from oxygen_ros.offline.virtual_time import StageCosts, VirtualClock
from oxygen_ros.perception.inputs import PARAMETERS as PERCEPTION
from oxygen_ros.replay.bag import Bag
from oxygen_ros.replay.bag_writer import BagWriter
from oxygen_ros.replay.message_types import make, own_types, reader_of, type_store
from oxygen_ros.replay.stamps import StampedTypes, read_stamp, write_stamp
from oxygen_ros.tasks.parameters import PARAMETERS as INFERENCE

DATA = Path(__file__).parent / 'data'
G1 = DATA / 'bags' / 'g1_two_cameras'
FILES = ('bag/bag.mcap', 'bag/metadata.yaml', 'report.json', 'timeline.png')
SECOND = 1_000_000_000


@pytest.fixture(scope='module')
def model_file(tmp_path_factory):
    """The built-in policy, small, with as many actions and as much room as the robot needs."""
    path = tmp_path_factory.mktemp('models') / 'small.yaml'
    path.write_text(yaml.safe_dump(small_config(**{**SIZES, 'action_dim': 32, 'horizon': 20, 'prompt_tokens': 60})))
    return str(path)


@pytest.fixture
def offline(model_file, tmp_path, capsys):
    """Return a function that runs `oxygen_ros offline` and returns exit code, report, folder and what it said."""
    def run(bag, *words, name='out'):
        folder = tmp_path / name
        code = main(['offline', str(bag), '--output', str(folder), '--model', model_file, '--no-picture',
                     '-p', 'image_height:=56', '-p', 'image_width:=56', *map(str, words)])
        said = capsys.readouterr()
        report = json.loads((folder / 'report.json').read_text()) if (folder / 'report.json').exists() else None
        return code, report, folder, said

    return run


def messages(folder, topic):
    """Return (time in ns, message) of a topic in the output bag."""
    with Bag(folder / 'bag') as bag:
        read = reader_of(next(entry for entry in bag.topics if entry.name == topic))
        return [(message.time_ns, read(message.data)) for message in bag.messages([topic])]


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob('*') if path.is_file()}


def nanoseconds(time):
    return time.sec * SECOND + time.nanosec


def test_two_runs_are_equal_byte_by_byte(model_file, tmp_path):
    for name in ('one', 'other'):
        assert main(['offline', str(G1), '-o', str(tmp_path / name), '--model', model_file, '--duration', '2',
                     '--memory-rate', '2', '--stage-costs', 'prefill=30,denoise=20,extend=10,decode=5']) == 0
    for file in FILES:
        assert (tmp_path / 'one' / file).read_bytes() == (tmp_path / 'other' / file).read_bytes(), file
    report = json.loads((tmp_path / 'one' / 'report.json').read_text())
    assert report['actions']['chunks'] >= 8 and report['texts']['tokens'] > 50 and report['memory']
    speed = json.loads((tmp_path / 'one' / 'speed.json').read_text())
    assert set(speed) == {'virtual_s', 'run_s', 'load_s', 'times_real_time'}


def test_another_seed_gives_other_actions_and_texts(offline):
    one = offline(G1, '--duration', 1, '--seed', 1)[2]
    other = offline(G1, '--duration', 1, '--seed', 2, name='other')[2]
    rows = [messages(folder, '/chunks')[0][1].points[0].positions for folder in (one, other)]
    assert not np.array_equal(*rows)


def test_nothing_of_it_imports_ros():
    script = ('import sys, pkgutil, importlib, oxygen_ros.offline, oxygen_ros.compare\n'
              'for package in (oxygen_ros.offline, oxygen_ros.compare):\n'
              '    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):\n'
              '        importlib.import_module(module.name)\n'
              'print([name for name in sys.modules if name.split(".")[0] in ("rclpy", "sensor_msgs", "std_msgs")'
              ' or name.startswith(("oxygen_ros.msg", "oxygen_ros.nodes"))])')
    done = subprocess.run([sys.executable, '-c', script], capture_output=True, text=True, cwd=Path(__file__).parents[1])
    assert done.stdout.strip() == '[]', done.stderr


def test_output_bag_can_be_read_with_what_is_in_it_alone(offline):
    """Each channel has a schema, and with that and no other knowledge every message can be read: Foxglove does so."""
    _, _, folder, _ = offline(G1, '--with-frames', '--with-inputs', '--duration', 1, '--memory-rate', 4)
    with open(folder / 'bag' / 'bag.mcap', 'rb') as file:
        reader = make_reader(file, validate_crcs=True)
        assert reader.get_header().profile == 'ros2'
        read = {}
        for schema, channel, message in reader.iter_messages():
            assert schema.encoding == 'ros2msg' and channel.message_encoding == 'cdr'
            store = get_typestore(Stores.EMPTY)
            store.register(get_types_from_msg(schema.data.decode(), schema.name))
            content = store.deserialize_cdr(message.data, schema.name)
            assert bytes(store.serialize_cdr(content, schema.name)) == message.data
            read[channel.topic] = content
        assert reader.get_summary().statistics.message_count > len(read)
    assert {'/chunks', '/joint_trajectory', '/joint_commands', '/speech', '/speech/sentences', '/memory', '/frames',
            '/joint_states', '/camera/head/image_raw/compressed', '/instruction'} <= set(read)
    assert list(read['/frames'].camera_names) == ['head', 'front'] and read['/frames'].images[0].encoding == 'rgb8'
    with Bag(folder / 'bag') as bag:
        assert bag.notes == [] and all(topic.count == topic.promised for topic in bag.topics)


def test_own_types_are_those_that_ros_has():
    interfaces = importlib.import_module('oxygen_ros.msg')
    for name in own_types():
        fields = [field for field, _ in type_store().fielddefs[name][1]]
        assert fields == list(getattr(interfaces, name.rpartition('/')[2]).get_fields_and_field_types())


def test_chunks_answer_the_newest_frame_and_commands_stay_in_limits(offline):
    _, report, folder, _ = offline(G1)
    chunks = messages(folder, '/chunks')
    assert len(chunks) == report['actions']['chunks'] == 13
    for time_ns, chunk in chunks:  # a chunk is made 5 ms before its deadline, from a frame of the last 0.1 s
        assert 0 <= time_ns - nanoseconds(chunk.header.stamp) <= 0.11 * SECOND
    assert report['actions']['results'] == {'blended': 12, 'started': 1} and report['actions']['late'] == 0
    times = [time_ns for time_ns, _ in messages(folder, '/joint_commands')]
    assert set(np.diff(times)) == {SECOND // 50}
    assert report['missing'] == [] and report['instructions'][0]['text'] == 'look around'
    assert len(report['instructions']) == 3  # two are in the recording


def test_work_that_takes_virtual_time_delays_what_waits_for_it_and_nothing_else(offline):
    _, free, free_folder, _ = offline(G1, '--duration', 2)
    _, slow, folder, _ = offline(G1, '--duration', 2, '--stage-costs', 'prefill=150,denoise=150,extend=40,decode=30',
                                 name='slow')
    # An action takes longer than its period: it comes late, and some are given up.
    assert free['actions']['late'] == 0 and slow['actions']['late'] > 0
    assert slow['actions']['chunks'] < free['actions']['chunks']
    assert slow['actions']['most_late_ms'] >= 100
    # Commands come at their rate while the engine works, and frames are taken in.
    assert set(np.diff([time for time, _ in messages(folder, '/joint_commands')])) == {SECOND // 50}
    assert slow['frames']['made'] == free['frames']['made']
    # What both made of the same frame is the same.
    rows = [{nanoseconds(chunk.header.stamp): np.stack([point.positions for point in chunk.points])
             for _, chunk in messages(out, '/chunks')} for out in (free_folder, folder)]
    common = rows[0].keys() & rows[1].keys()
    assert len(common) >= 2 and all(np.array_equal(rows[0][stamp], rows[1][stamp]) for stamp in common)


def test_text_takes_as_long_as_its_steps(offline):
    words = ('--duration', 1, '--action-rate', 0, '--memory-rate', 0, '--speech-rate', 2, '-p', 'speech.max_tokens:=6')
    _, report, _, _ = offline(G1, *words, '--stage-costs', 'prefill=20,extend=10,decode=40')
    first = report['texts']['all'][0]
    assert first['tokens'] == 6 and first['finish'] == 'LENGTH'
    # Due after 0.5 s: prefill, then six steps, for the prompt of a spoken line is a single token.
    assert first['last_ns'] - report['virtual_time']['start_ns'] == round((0.5 + 0.02 + 6 * 0.04) * SECOND)


def test_missing_messages_are_an_error_that_names_the_topic(offline, tmp_path):
    folder = shutil.copytree(G1, tmp_path / 'bag')
    metadata = yaml.safe_load((folder / 'metadata.yaml').read_text())
    for entry in metadata['rosbag2_bagfile_information']['topics_with_message_count']:
        if entry['topic_metadata']['name'] == '/joint_states':
            entry['message_count'] += 7
    (folder / 'metadata.yaml').write_text(yaml.safe_dump(metadata))
    code, report, _, said = offline(folder)
    assert code == 1 and report['missing'] == ['/joint_states: 157 messages promised, 150 delivered']
    assert 'error: /joint_states: 157 messages promised' in said.err


def test_damaged_messages_are_left_out_and_counted(offline, tmp_path):
    with Bag(G1) as bag, BagWriter(tmp_path / 'bag') as writer:
        for topic in bag.topics:
            writer.add(topic.name, topic.type, topic.qos, (topic.definition, topic.type_hash))
        for number, message in enumerate(bag.messages()):
            cut = message.topic == '/joint_states' and number % 3 == 0
            writer.write_serialized(message.topic, message.time_ns, message.data[:30] if cut else message.data)
    code, report, _, _ = offline(tmp_path / 'bag', '--duration', 1)
    joints = next(topic for topic in report['inputs']['topics'] if topic['topic'] == '/joint_states')
    assert code == 0 and 0 < joints['damaged'] < joints['taken']
    assert any('is no sensor_msgs/msg/JointState' in note for note in report['notes'])


@pytest.mark.parametrize('words, text', [
    (['-p', 'camera_topics:=/nose,/tail'], 'topic /nose is not in the recording, which has the pictures /camera/front'),
    (['-p', 'camera_types:=raw'], 'was recorded as sensor_msgs/msg/CompressedImage, not as sensor_msgs/msg/Image'),
    (['-p', 'video_sources:=head=/dev/video0'], 'video source'),
    (['-p', 'acton.rate:=3'], 'did you mean action.rate'),
    (['-p', 'action.rate:=fast'], "must be of type float, not 'fast'"),
    (['--stage-costs', 'prefil=3'], "unknown stage 'prefil'"),
    (['--stage-costs', 'prefill=-3'], 'not negative'),
    (['--stage-costs', 'prefill'], 'stage=milliseconds'),
    (['--start-offset', '100'], 'lasts only'),
    (['--robot', 'g2'], "unknown robot 'g2'"),
])
def test_wrong_use_is_one_line_and_leaves_no_results(offline, words, text):
    code, report, folder, said = offline(G1, *words)
    assert code == 2 and report is None
    assert said.err.startswith('error:') and said.err.count('\n') == 1 and text in said.err
    assert not folder.exists() or not list(folder.iterdir())


def test_earlier_results_are_replaced_only_on_demand_and_by_whole_ones(offline, tmp_path):
    words = ('--duration', 0.5)
    assert offline(G1, *words)[0] == 0
    code, _, folder, said = offline(G1, *words)
    assert code == 2 and '--overwrite' in said.err
    (folder / 'mine.txt').write_text('keep me')
    before = contents(folder)
    assert offline(G1, *words, '--overwrite', '--checkpoint', tmp_path / 'nowhere')[0] == 2
    assert contents(folder) == before  # what cannot run destroys nothing
    assert offline(G1, *words, '--overwrite', '--instruction', 'wave')[0] == 0
    after = contents(folder)
    assert after.keys() == before.keys() and after['mine.txt'] == b'keep me'
    assert after['report.json'] != before['report.json']


def test_recording_without_frames_is_an_error_that_says_why(offline):
    # Only one of two required cameras has pictures.
    code, report, _, said = offline(G1, '-p', 'camera_topics:=/camera/head/image_raw/compressed,/nose',
                                    '-p', 'missing_cameras:=required,optional', '--duration', 1)
    assert code == 0 and report['frames']['made'] > 0
    code, report, _, said = offline(G1, '-p', 'stamps:=header', '-p', 'slop:=0.0', '-p', 'queue:=1', '-p',
                                    'joints:=no_such_joint', '-p', 'require_joints:=true', name='none')
    assert code == 1 and report['frames']['made'] == 0 and 'no frame was made' in said.err


def test_question_in_the_recording_is_answered(offline, tmp_path):
    with Bag(G1) as bag, BagWriter(tmp_path / 'bag') as writer:
        asked = False
        for topic in bag.topics:
            writer.add(topic.name, topic.type, topic.qos, (topic.definition, topic.type_hash))
        for message in bag.messages():
            writer.write_serialized(message.topic, message.time_ns, message.data)
            if not asked and message.time_ns > bag.start_ns + SECOND // 2:
                asked = True
                writer.write('/utterance', message.time_ns, make('std_msgs/msg/String', data='what is this?'))
    _, report, folder, _ = offline(tmp_path / 'bag', '--speech-rate', 0)
    answer = next(text for text in report['texts']['all'] if text['task'] == 'answer')
    assert answer['question'] == 'what is this?' and answer['frame_number'] > 0
    assert answer['finish'] in ('STOP', 'LENGTH', 'REPETITION')
    pieces = [piece for _, piece in messages(folder, '/speech')]
    assert ''.join(piece.delta for piece in pieces) == answer['text']


def test_notes_carry_a_picture_and_where_the_robot_was(offline, tmp_path):
    with Bag(G1) as bag, BagWriter(tmp_path / 'bag') as writer:
        for topic in bag.topics:
            writer.add(topic.name, topic.type, topic.qos, (topic.definition, topic.type_hash))
        for message in bag.messages():
            writer.write_serialized(message.topic, message.time_ns, message.data)
            if message.topic == '/camera/head/image_raw/compressed':
                stamp = make('builtin_interfaces/msg/Time', sec=message.time_ns // SECOND,
                             nanosec=message.time_ns % SECOND)
                place = make('geometry_msgs/msg/PoseStamped', header=make('std_msgs/msg/Header', stamp=stamp,
                                                                          frame_id='map'))
                place.pose.position.x = (message.time_ns - bag.start_ns) / SECOND
                writer.write('/pose', message.time_ns, place)
    _, _, folder, _ = offline(tmp_path / 'bag', '-p', 'memory.pose_topic:=/pose', '--memory-rate', 2)
    (_, note), *_ = messages(folder, '/memory')
    assert note.pose.header.frame_id == 'map'
    seen = nanoseconds(note.header.stamp) / SECOND - 1_700_000_000
    assert note.pose.pose.position.x == pytest.approx(seen, abs=0.06)
    assert bytes(note.thumbnail.data[:2]) == b'\xff\xd8' and note.thumbnail.format == 'jpeg'


def test_recording_of_a_slow_simulation_is_run_by_its_header_stamps(offline, tmp_path):
    """The simulation ran at half speed, the recorder at real time: by time of recording its frames grow ever older."""
    with Bag(G1) as bag, BagWriter(tmp_path / 'bag') as writer:
        stamped = StampedTypes(bag.topics).types
        for topic in bag.topics:
            writer.add(topic.name, topic.type, topic.qos, (topic.definition, topic.type_hash))
        for message in bag.messages():
            data = message.data
            if message.type in stamped and read_stamp(data):
                data = write_stamp(data, 100 * SECOND + (read_stamp(data) - bag.start_ns) // 2)
            writer.write_serialized(message.topic, message.time_ns, data)
    _, old, _, _ = offline(tmp_path / 'bag')
    assert any('max_frame_age' in reason for reason in old['actions']['skipped'])
    _, report, _, _ = offline(tmp_path / 'bag', '--order', 'header', name='header')
    assert report['virtual_time']['seconds'] == pytest.approx(1.5, abs=0.05)
    assert report['frames']['made'] >= 14 and not report['actions']['skipped']
    assert report['actions']['chunks'] >= 5 and report['actions']['late'] == 0


def test_long_pause_in_the_recording_is_skipped(offline, tmp_path):
    with Bag(G1) as bag, BagWriter(tmp_path / 'bag') as writer:
        for topic in bag.topics:
            writer.add(topic.name, topic.type, topic.qos, (topic.definition, topic.type_hash))
        for late in (0, 5 * 86400 * SECOND):
            for message in bag.messages():
                writer.write_serialized(message.topic, message.time_ns + late, message.data)
    code, report, folder, _ = offline(tmp_path / 'bag', '-p', 'stamps:=receive')
    virtual = report['virtual_time']
    assert code == 0 and virtual['seconds'] > 5 * 86400
    assert 30 <= virtual['seconds'] - virtual['pauses_skipped'] < 40
    acted = [time for time, _ in messages(folder, '/chunks')]
    assert sum(time > acted[0] + 86400 * SECOND for time in acted) >= 12


def test_parameters_come_from_table_file_and_rule_in_this_order(tmp_path):
    file = tmp_path / 'robot.yaml'
    file.write_text(yaml.safe_dump({
        '/**': {'ros__parameters': {'rate': 3.0}},
        '/**/inference': {'ros__parameters': {'action': {'rate': 7.0}, 'seed': 4, 'unknown': 1}},
        'other': {'ros__parameters': {'seed': 9}}, 'ns': {'perception': {'ros__parameters': {'cameras': ['head']}}}}))
    values = node_values('inference', INFERENCE, [file], ['seed:=5'])
    assert (values['action.rate'], values['seed'], values['speech.rate']) == (7.0, 5, 2.0)
    values = node_values('perception', PERCEPTION, [file], [])
    assert (values['rate'], values['cameras'], values['camera_topics']) == (3.0, ('head',), ())
    file.write_text('/**/inference: {ros__parameters: {action.rate: 7}}')
    with pytest.raises(ConfigError, match='write 10.0, not 10'):
        node_values('inference', INFERENCE, [file], [])


def test_shipped_parameter_file_is_what_the_nodes_have_by_default():
    from oxygen_ros.files import share_directories
    file = share_directories()[0] / 'config' / 'oxygen.yaml'
    for node, table in (('inference', INFERENCE), ('perception', PERCEPTION)):
        assert node_values(node, table, [file], []) == node_values(node, table, [], [])


def test_rules_go_to_the_nodes_that_know_them():
    tables = {'inference': INFERENCE, 'perception': PERCEPTION}
    split = split_rules(['robot:=aloha', 'rate:=3.0', 'inference:robot:=libero'], tables)
    assert split == {'inference': ['robot:=aloha', 'robot:=libero'], 'perception': ['robot:=aloha', 'rate:=3.0']}


def test_virtual_clock_rounds_up_so_that_time_goes_on():
    clock = VirtualClock(10, 0)
    assert clock.at(1e-9 * 1.5) == 2 and clock.at(float('inf')) == 2**63 - 1
    assert StageCosts.parse('zero').zero and StageCosts.parse('decode=8') == StageCosts(decode=8.0)
