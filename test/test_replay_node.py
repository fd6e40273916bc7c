"""The replay node as a process, heard over DDS."""

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest
import rclpy
from mcap.writer import Writer as McapWriter
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import String
from std_srvs.srv import SetBool
from trajectory_msgs.msg import JointTrajectory

from oxygen_ros.cli import main
from oxygen_ros.nodes.recorded_qos import publisher_qos
from oxygen_ros.replay.bag import Bag
from oxygen_ros.replay.stamps import read_stamp

DATA = Path(__file__).parent / 'data'
G1 = DATA / 'bags' / 'g1_two_cameras'
DOMAIN = 20 + os.getpid() % 80
HEAD, FRONT = '/camera/head/image_raw/compressed', '/camera/front/image_raw/compressed'
TYPES = {'/clock': Clock, '/joint_states': JointState, HEAD: CompressedImage, FRONT: CompressedImage,
         '/instruction': String, '/robot_description': String, '/joint_trajectory': JointTrajectory}


@pytest.fixture(scope='module')
def context():
    """Return a ROS context of our own domain, on this machine only."""
    previous = os.environ.get('ROS_AUTOMATIC_DISCOVERY_RANGE')
    os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'LOCALHOST'
    context = rclpy.Context()
    rclpy.init(context=context, domain_id=DOMAIN)
    yield context
    context.try_shutdown()
    if previous is None:
        del os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE']
    else:
        os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] = previous


class Listener:
    """Subscribes to topics and keeps the serialized messages. Cameras are best effort, as live ones would be."""

    def __init__(self, context, types):
        self.received = defaultdict(list)
        self.node = rclpy.create_node('listener', context=context)
        self.executor = SingleThreadedExecutor(context=context)
        self.executor.add_node(self.node)
        for name, type_ in types.items():
            best_effort, latched = 'camera' in name, name == '/robot_description'
            self.node.create_subscription(
                type_, name, self.received[name].append, QoSProfile(
                    depth=1000,
                    reliability=ReliabilityPolicy.BEST_EFFORT if best_effort else ReliabilityPolicy.RELIABLE,
                    durability=DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE), raw=True)

    def listen(self, until, seconds=60):
        """Spin until a condition holds, then for what is still under way; fail after so many seconds."""
        give_up = time.monotonic() + seconds
        while not until():
            assert time.monotonic() < give_up, {name: len(items) for name, items in self.received.items()}
            self.executor.spin_once(timeout_sec=0.05)
        quiet = time.monotonic() + 0.3
        while time.monotonic() < quiet:
            self.executor.spin_once(timeout_sec=0.05)

    def close(self):
        self.executor.shutdown()
        self.node.destroy_node()


@pytest.fixture
def listener(context):
    """Return a listener to the topics of the G1 recording."""
    listener = Listener(context, TYPES)
    yield listener
    listener.close()


@pytest.fixture
def replay():
    """Return a function that starts `oxygen_ros replay` with these words. What still runs at the end is killed."""
    processes = []

    def start(*words):
        environment = {**os.environ, 'ROS_DOMAIN_ID': str(DOMAIN), 'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST'}
        processes.append(subprocess.Popen(
            [sys.executable, '-m', 'oxygen_ros', 'replay', *map(str, words)], env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        return processes[-1]

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def recorded(path, topics):
    """Return topic -> serialized messages of a recording."""
    messages = defaultdict(list)
    with Bag(path) as bag:
        for message in bag.messages(topics):
            messages[message.topic].append(message.data + bytes(-len(message.data) % 4))  # DDS pads to 4 bytes
    return messages


def end(process):
    """Return exit code, standard output and error output of a process that ends by itself."""
    out, err = process.communicate(timeout=60)
    assert 'Traceback' not in err
    return process.returncode, out, err


def test_every_message_arrives_as_it_was_recorded(listener, replay):
    process = replay(G1, '--rate', 2, '--topics', *TYPES, '--wait-for-subscribers', 20, '--json')
    listener.listen(lambda: process.poll() is not None)
    code, out, _ = end(process)
    report = json.loads(out)
    assert code == 0 and report['published'] == 393 and report['differences'] == []
    expected = recorded(G1, TYPES)
    for name in TYPES:
        if 'camera' in name:  # best effort: some may be lost on a busy machine, none may be changed
            assert len(listener.received[name]) >= 27
            assert set(listener.received[name]) <= set(expected[name])
        else:
            assert listener.received[name] == expected[name]


def test_restamped_loops_happen_now_without_own_outputs(listener, replay):
    process = replay(G1, '--rate', 4, '--loop', '--restamp', '--clock', 50, '--wait-for-subscribers', 20)
    listener.listen(lambda: len(listener.received['/joint_states']) > 310)  # a loop has 150
    process.send_signal(signal.SIGINT)
    code, out, err = end(process)
    assert code == 0 and 'stopped' in out
    for name in ('/joint_states', HEAD, FRONT, '/clock'):
        stamps = [read_stamp(data) for data in listener.received[name]]
        assert len(stamps) > 20 and all(a < b for a, b in zip(stamps, stamps[1:])), name
        assert abs(stamps[-1] - time.time_ns()) < 60e9
    assert '/joint_trajectory is not played: it is an output of this suite' in err
    assert listener.received['/joint_trajectory'] == []


def test_pause_stops_clock_and_messages_until_it_ends(listener, replay):
    process = replay(G1, '--rate', 4, '--clock', 100, '--start-paused', '--topics', *TYPES,
                     '--wait-for-subscribers', 20, '--json')
    client = listener.node.create_client(SetBool, '/replay/pause')

    def pause(data):
        future = client.call_async(SetBool.Request(data=data))
        listener.listen(future.done)
        assert future.result().success

    listener.listen(client.service_is_ready)
    listener.listen(lambda: listener.node.count_publishers('/joint_states'))
    assert not listener.received['/joint_states']
    pause(False)
    listener.listen(lambda: len(listener.received['/joint_states']) > 10)
    pause(True)
    counts = {name: len(data) for name, data in listener.received.items()}
    listener.listen(lambda: True)  # 0.3 s, in which more than a second of the recording would be played
    assert counts == {name: len(data) for name, data in listener.received.items()} and counts['/clock']
    assert counts['/joint_states'] < 150
    pause(False)
    listener.listen(lambda: process.poll() is not None)
    code, out, err = end(process)
    report = json.loads(out)
    assert code == 0 and report['differences'] == [] and 'paused' in err
    assert len(listener.received['/joint_states']) == 150
    clock = [read_stamp(data) for data in listener.received['/clock']]
    assert clock == sorted(clock) and max(b - a for a, b in zip(clock, clock[1:])) < 200_000_000  # no gap of a pause


def test_space_key_of_its_terminal_pauses(listener):
    """On a terminal of its own, in whose foreground it runs."""
    words = [sys.executable, '-m', 'oxygen_ros', 'replay', str(G1), '--loop', '--start-paused',
             '--wait-for-subscribers', '20']
    environment = {**os.environ, 'ROS_DOMAIN_ID': str(DOMAIN), 'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST'}
    child, terminal = pty.fork()
    if child == 0:
        os.execve(sys.executable, words, environment)
    try:
        listener.listen(lambda: listener.node.count_publishers('/joint_states'))
        listener.listen(lambda: True)
        assert not listener.received['/joint_states']
        os.write(terminal, b' ')
        listener.listen(lambda: len(listener.received['/joint_states']) > 10)
        os.write(terminal, b'x ')  # other keys do nothing
        listener.listen(lambda: True)
        count = len(listener.received['/joint_states'])
        listener.listen(lambda: True)
        assert len(listener.received['/joint_states']) == count
        os.write(terminal, b'\x03')  # Ctrl-C, also in a pause
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        child = 0
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        os.close(terminal)


def test_messages_come_by_header_stamp_on_demand(replay, listener, tmp_path):
    """Every joint state is recorded 0.5 s late: by header they are back among the pictures."""
    from oxygen_ros.replay.bag_writer import BagWriter
    with Bag(G1) as bag, BagWriter(tmp_path / 'bag') as writer:
        for topic in bag.topics:
            writer.add(topic.name, topic.type, topic.qos, (topic.definition, topic.type_hash))
        for message in bag.messages():
            late = 500_000_000 if message.topic == '/joint_states' else 0
            writer.write_serialized(message.topic, message.time_ns + late, message.data)
    process = replay(tmp_path / 'bag', '--order', 'header', '--rate', 4, '--wait-for-subscribers', 20, '--json',
                     '--topics', '/joint_states', HEAD)
    sent = {'image': [], 'joints': []}
    qos = QoSProfile(depth=1000, reliability=ReliabilityPolicy.BEST_EFFORT)
    for kind, type_, name in (('image', CompressedImage, HEAD), ('joints', JointState, '/joint_states')):
        listener.node.create_subscription(
            type_, name, lambda _, info, kind=kind: sent[kind].append(info['source_timestamp']), qos)
    listener.listen(lambda: process.poll() is not None)
    code, out, _ = end(process)
    assert code == 0 and json.loads(out)['published'] == 180
    # As recorded, 25 or more joint states would come after the last picture.
    assert len(sent['joints']) > 140 and sum(time > max(sent['image']) for time in sent['joints']) < 15


def test_service_events_and_unknown_types_are_left_out_with_their_reason(replay, tmp_path):
    path = tmp_path / 'bag.mcap'
    with path.open('wb') as file:
        writer = McapWriter(file)
        writer.start('ros2')
        for topic, type_, data in (('/mine', 'my_msgs/msg/Thing', b'\7'), ('/text', 'std_msgs/msg/String', bytes(8)),
                                   ('/ask/_service_event', 'std_srvs/srv/SetBool_Event', b'\7')):
            schema = writer.register_schema(type_, 'ros2msg', b'string data')
            writer.add_message(writer.register_channel(topic, 'cdr', schema), 1, b'\0\1\0\0' + data, 1)
        writer.finish()
    code, out, err = end(replay(path, '--wait-for-subscribers', 0))
    assert code == 0 and 'published 1 of 1' in out
    assert '/mine is not played: its type my_msgs/msg/Thing is not installed' in err
    assert '/ask/_service_event is not played: it holds what a service or an action did' in err


def test_sqlite_with_other_qos_text_is_played_under_other_names(context, replay):
    listener = Listener(context, {'/left/image_raw': Image, '/robot1/joints': JointState})
    process = replay(DATA / 'cases' / '101-metadata-qos-text-differs' / 'bag_sqlite3', '--wait-for-subscribers', 20,
                     '--remap', '/joint_states:=joints', '--namespace', 'robot1')
    listener.listen(lambda: process.poll() is not None)
    listener.close()
    assert end(process)[0] == 0
    assert len(listener.received['/left/image_raw']) == len(listener.received['/robot1/joints']) == 10


def test_missing_part_gives_exit_code_1_and_names_the_topics(replay):
    process = replay(DATA / 'cases' / '87-split-part-missing' / 'bag', '--rate', 100, '--wait-for-subscribers', 0)
    code, out, err = end(process)
    assert code == 1 and 'published 40 of 60' in out
    assert '/left/image_raw: 30 messages promised, 20 delivered' in err
    assert 'another definition' not in err


def test_other_definition_of_a_type_is_reported(replay, tmp_path):
    folder = shutil.copytree(DATA / 'cases' / '87-split-part-missing' / 'bag', tmp_path / 'bag')
    metadata = folder / 'metadata.yaml'
    metadata.write_text(metadata.read_text().replace('RIHS01_a13e', 'RIHS01_0000'))
    _, _, err = end(replay(folder, '--rate', 100, '--wait-for-subscribers', 0))
    assert err.count('another definition') == 1
    assert '/joint_states was recorded with another definition of sensor_msgs/msg/JointState' in err


@pytest.mark.parametrize('words, text', [
    (['/no/such/recording'], '/no/such/recording'),
    ([], 'no recording'),
    ([G1, '--rate', '0'], 'rate'),
    ([G1, '--start-offset', '100'], 'lasts only'),
    ([G1, '--topics', '/camera/tail'], '/camera/head'),
    ([G1, '--remap', '/a'], 'old:=new'),
    ([DATA / 'cases' / '86-zero-byte-db3' / 'bag_zero'], 'bag_zero.db3'),
])
def test_wrong_use_is_one_line_and_exit_code_2(monkeypatch, capsys, words, text):
    monkeypatch.setenv('ROS_DOMAIN_ID', str(DOMAIN))
    monkeypatch.setenv('ROS_AUTOMATIC_DISCOVERY_RANGE', 'LOCALHOST')
    code = main(['replay', *map(str, words)])
    out, err = capsys.readouterr()
    assert code == 2 and out == ''
    assert err.startswith('error:') and err.count('\n') == 1 and text in err


def test_signal_that_comes_twice_ends_a_loop_in_an_orderly_way(listener, replay):
    process = replay(G1, '--loop', '--wait-for-subscribers', 20)
    listener.listen(lambda: listener.received['/joint_states'])
    for _ in range(2):  # as under a launcher, which passes on what the terminal has sent already
        process.send_signal(signal.SIGTERM)
    code, out, err = end(process)
    assert code == 0 and 'stopped' in out and 'error' not in err.lower()


def test_info_shows_the_recording_and_plays_nothing(capsys):
    assert main(['replay', str(G1), '--info', '--json']) == 0
    info = json.loads(capsys.readouterr().out)
    assert info['count'] == 394 and info['duration_s'] == 2.981
    assert {'topic': HEAD, 'type': 'sensor_msgs/msg/CompressedImage', 'count': 30, 'promised': 30,
            'qos': ['best_effort, volatile, depth 5']} in info['topics']
    assert main(['replay', str(DATA / 'cases' / '87-split-part-missing' / 'bag'), '--info']) == 0
    out = capsys.readouterr().out
    assert '20 of 30 promised  /joint_states' in out and 'bag_1.mcap is missing' in out


def test_recorded_qos_becomes_that_of_the_publisher():
    with Bag(G1) as bag:
        qos = {topic.name: publisher_qos(topic) for topic in bag.topics}
    assert qos[HEAD].reliability == ReliabilityPolicy.BEST_EFFORT
    assert qos['/joint_states'].reliability == ReliabilityPolicy.RELIABLE
    assert qos['/joint_states'].durability == DurabilityPolicy.VOLATILE and qos['/joint_states'].depth == 10
    assert qos['/robot_description'].durability == DurabilityPolicy.TRANSIENT_LOCAL
