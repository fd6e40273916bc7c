"""Recording without rosbag2: what is published is in the recording, also when the recorder is killed."""

import importlib.util
import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import yaml
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rosbags.interfaces import QosDurability, QosReliability
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import JointState
from std_msgs.msg import String

from oxygen_ros.cli import main
from oxygen_ros.errors import BagError, ConfigError
from oxygen_ros.files import share_directories
from oxygen_ros.msg import Frame, TextChunk
from oxygen_ros.nodes.record import RecordNode
from oxygen_ros.recording import profile_topics, read_qos_file, wanted
from oxygen_ros.replay.bag import Bag
from oxygen_ros.replay.bag_writer import BagWriter
from oxygen_ros.replay.message_types import make, reader_of
from oxygen_ros.robot.robot_file import load_robot

SECOND = 1_000_000_000


class Publishers:
    """Publishers of the test's own, and a recorder as a process."""

    def __init__(self, graph, folder, *words):
        self.graph, self.folder = graph, folder / 'recording'
        node = graph.node
        self.joints = node.create_publisher(JointState, 'joint_states', QoSProfile(
            depth=100, reliability=ReliabilityPolicy.BEST_EFFORT))
        self.text = node.create_publisher(TextChunk, 'speech', 100)
        self.description = node.create_publisher(String, 'robot_description', QoSProfile(
            depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL))
        self.description.publish(String(data='<robot/>'))
        self.sent = 0
        self.process = graph.start('record', '--output', str(self.folder), *words)
        assert graph.spin_until(lambda: self.text.get_subscription_count() and self.joints.get_subscription_count(), 60)
        graph.spin_for(0.5)  # the other way round

    def publish(self, seconds):
        for _ in range(round(50 * seconds)):
            self.joints.publish(JointState(name=['a'], position=[float(self.sent)]))
            self.text.publish(TextChunk(task='speech', delta=f'{self.sent}'))
            self.sent += 1
            self.graph.spin_for(0.02)

    def end(self, number=signal.SIGINT):
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err


def contents(folder, topic):
    with Bag(folder) as bag:
        read = reader_of(next(entry for entry in bag.topics if entry.name == topic))
        return [(message.time_ns, read(message.data)) for message in bag.messages([topic])], list(bag.notes)


def test_what_is_published_is_recorded_with_qos_and_definitions(ros_graph, tmp_path):
    run = Publishers(ros_graph, tmp_path, '--json', '--topics', 'joint_states', '/speech', '/robot_*', '/nothing')
    run.publish(1.0)
    ros_graph.spin_for(0.5)
    hashes = {name: str(ros_graph.node.get_publishers_info_by_topic(name)[0].topic_type_hash)
              for name in ('/joint_states', '/speech', '/robot_description')}
    code, out, err = run.end()
    report = json.loads(out)
    assert code == 0 and report['differences'] == [] and report['notes'] == [], err
    assert report['written'] == 2 * run.sent + 1 and report['absent'] == ['/nothing']
    with Bag(run.folder) as bag:
        topics = {topic.name: topic for topic in bag.topics}
        assert {name: topic.count for name, topic in topics.items()} == {
            '/joint_states': run.sent, '/speech': run.sent, '/robot_description': 1}
        assert {name: topic.type_hash for name, topic in topics.items()} == hashes  # also those of our own types
        assert topics['/joint_states'].qos[0].reliability == QosReliability.BEST_EFFORT
        assert topics['/robot_description'].qos[0].durability == QosDurability.TRANSIENT_LOCAL
        assert 'uint8 DROPPED=7' in topics['/speech'].definition.replace(' = ', '=')
    texts, notes = contents(run.folder, '/speech')
    assert [message.delta for _, message in texts] == [str(number) for number in range(run.sent)] and notes == []
    times = [time_ns for time_ns, _ in texts]
    assert times == sorted(times) and times[-1] - times[0] >= 0.8 * SECOND


def test_killed_recorder_loses_no_more_than_the_last_chunk(ros_graph, tmp_path):
    run = Publishers(ros_graph, tmp_path, '-p', 'flush:=0.2')
    run.publish(1.0)
    safe = run.sent
    ros_graph.spin_for(1.0)  # several times `flush`
    run.publish(0.1)
    run.process.kill()
    run.process.communicate()
    texts, notes = contents(run.folder, '/speech')
    assert safe <= len(texts) <= run.sent
    assert [message.delta for _, message in texts] == [str(number) for number in range(len(texts))]
    assert any('no metadata.yaml' in note for note in notes) and any('truncated' in note for note in notes)


def test_gaps_in_the_numbers_of_a_publisher_are_counted():
    node = SimpleNamespace(_sources={'/one': 1, '/two': 2}, _numbers={}, lost=Counter())
    for number in (5, 6, 9, 10, 1, 2, 3):  # two lost; then the publisher was started anew
        RecordNode._count_gap(node, '/one', number)
        RecordNode._count_gap(node, '/two', number)  # of two publishers the numbers tell nothing
    RecordNode._count_gap(node, '/one', 2**64 - 1)  # the middleware gives no numbers
    assert node.lost == {'/one': 2}


def test_frames_and_other_topics_are_recorded_on_demand_only(ros_graph, tmp_path):
    frames = ros_graph.node.create_publisher(Frame, 'frames', 2)
    other = ros_graph.node.create_publisher(String, 'chatter', 2)
    run = Publishers(ros_graph, tmp_path)
    frames.publish(Frame())
    other.publish(String())
    run.publish(0.3)
    assert run.end()[0] == 0
    with Bag(run.folder) as bag:
        assert {topic.name for topic in bag.topics} == {'/joint_states', '/speech', '/robot_description'}


def test_simulated_time_is_the_time_of_recording(ros_graph, tmp_path):
    clock = ros_graph.node.create_publisher(Clock, '/clock', 10)
    run = Publishers(ros_graph, tmp_path, '--use-sim-time', '--json')
    run.publish(0.2)  # before the clock runs
    early = run.sent
    for number in range(100):
        message = Clock()
        message.clock.sec = 100 + number
        clock.publish(message)
        run.publish(0.02)
    code, out, err = run.end()
    texts, _ = contents(run.folder, '/speech')
    assert code == 1 and 'nothing has come on /clock' in err
    report = {topic['topic']: topic for topic in json.loads(out)['topics']}
    assert report['/speech']['dropped'] >= early and len(texts) >= 50
    assert all(100 * SECOND <= time_ns < 200 * SECOND for time_ns, _ in texts)


@pytest.mark.parametrize('words, text', [
    (['--robot', 'g2'], "unknown robot 'g2'"), (['-p', 'qos_file:=/no/such/file.yaml'], '/no/such/file.yaml'),
    (['-p', 'flush:=0.0'], 'flush')])
def test_wrong_use_is_one_line(ros_domain, tmp_path, capfd, words, text):
    assert main(['record', '--output', str(tmp_path / 'out'), *words]) == 2
    error = capfd.readouterr().err
    assert text in error and error.count('\n') == 1


def test_existing_folder_is_not_overwritten(ros_domain, tmp_path, capfd):
    assert main(['record', '--output', str(tmp_path)]) == 2
    assert 'exists already' in capfd.readouterr().err


def test_profile_holds_cameras_inputs_and_outputs():
    topics = profile_topics('unitree_g1', '/robot1/')
    assert set(load_robot('unitree_g1').cameras.values()) <= set(topics)
    assert {'/robot1/joint_states', '/robot1/joint_trajectory', '/robot1/speech/sentences', '/tf_static',
            '/robot1/memory', '/robot1/subtask'} <= set(topics)
    assert '/robot1/frames' not in topics and '/robot1/frames' in profile_topics('unitree_g1', 'robot1', frames=True)
    assert wanted('/camera/head', ['/camera/*']) and not wanted('/other', topics)


def test_shipped_qos_is_for_topics_of_the_profile():
    file = share_directories()[0] / 'config' / 'record_qos.yaml'
    qos = read_qos_file(str(file))
    assert set(qos) <= set(profile_topics('unitree_g1'))
    assert read_qos_file('record_qos') == qos
    assert all(policies['depth'] >= 10 for policies in qos.values())


@pytest.mark.parametrize('content, text', [
    ({'/a': {'reliability': 'sometimes'}}, 'sometimes'), ({'/a': {'depth': 0}}, 'depth'), ({'/a': {'dept': 3}}, 'dept'),
    (['/a'], 'no mapping')])
def test_wrong_qos_file_is_refused(tmp_path, content, text):
    file = tmp_path / 'qos.yaml'
    file.write_text(yaml.safe_dump(content))
    with pytest.raises(ConfigError, match=text):
        read_qos_file(str(file))


def test_flushed_messages_survive_a_killed_writer(tmp_path):
    script = ('import os, sys\n'
              'from oxygen_ros.replay.bag_writer import BagWriter\n'
              'from oxygen_ros.replay.message_types import make\n'
              'writer = BagWriter(sys.argv[1])\n'
              'for number in range(100):\n'
              '    writer.write("/text", number, make("std_msgs/msg/String", data=str(number)))\n'
              '    if number == 89: writer.flush()\n'
              'os.kill(os.getpid(), 9)\n')
    done = subprocess.run([sys.executable, '-c', script, str(tmp_path / 'bag')], cwd=Path(__file__).parents[1])
    assert done.returncode == -signal.SIGKILL
    assert [message.data for _, message in contents(tmp_path / 'bag', '/text')[0]] == [str(n) for n in range(90)]


def test_writer_refuses_what_it_cannot_do(tmp_path):
    with BagWriter(tmp_path / 'bag', compress=True) as writer:
        with pytest.raises(BagError, match='no definition of type my_msgs/msg/Thing'):
            writer.add('/mine', 'my_msgs/msg/Thing')
        writer.write('/text', 5, make('std_msgs/msg/String', data='hi'))
        assert writer.has('/text') and writer.written == Counter({'/text': 1})
    with pytest.raises(BagError, match='exists already'):
        BagWriter(tmp_path / 'bag')
    with pytest.raises(BagError, match='cannot be written'):
        BagWriter('/dev/null/bag')
    assert len(contents(tmp_path / 'bag', '/text')[0]) == 1


def test_launch_file_records_the_profile_with_rosbag2(monkeypatch):
    """`launch` is not on PyPI: stand-ins keep what they are given."""
    def stand_in(self, *words, **options):
        vars(self).update(words=words, **options)

    modules = {'launch': ('LaunchContext', 'LaunchDescription'),
               'launch.actions': ('DeclareLaunchArgument', 'ExecuteProcess', 'OpaqueFunction')}
    for name, classes in modules.items():
        module = ModuleType(name)
        vars(module).update({class_: type(class_, (), {'__init__': stand_in}) for class_ in classes})
        monkeypatch.setitem(sys.modules, name, module)
    launch = share_directories()[0] / 'launch' / 'record.launch.py'
    spec = importlib.util.spec_from_file_location('record_launch_file', launch)
    file = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(file)
    *declared, function = file.generate_launch_description().words[0]
    assert all(argument.description for argument in declared)
    values = {argument.words[0]: argument.default_value for argument in declared}
    assert Path(values['qos_file']).is_file()
    values |= {'namespace': 'robot1', 'topics': '/extra /more', 'use_sim_time': 'true', 'output': '/data/run'}
    process, = function.function(SimpleNamespace(launch_configurations=values))
    command = process.cmd
    assert command[:5] == ['ros2', 'bag', 'record', '--storage', 'mcap'] and '--use-sim-time' in command
    assert command[command.index('--output') + 1] == '/data/run'
    assert command[command.index('--qos-profile-overrides-path') + 1] == values['qos_file']
    topics = command[command.index('--topics') + 1:]
    assert topics == [*profile_topics('unitree_g1', 'robot1'), '/extra', '/more', '/clock']
