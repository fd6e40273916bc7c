"""Simulated time: no clock at all, a coarse one, one that is slower or quicker than real, one that jumps back."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import JointState
from small_policy import SIZES, small_config
from trajectory_msgs.msg import JointTrajectory

from oxygen_ros.msg import EngineStatus, Frame
from oxygen_ros.nodes.conversion import frame_to_msg, time_from_msg, time_to_msg
from oxygen_ros.observation import Observation
from oxygen_ros.perception.joint_merger import JointMerger
from oxygen_ros.perception.sync_options import Camera, SyncEvent, SyncOptions
from oxygen_ros.perception.synchronizer import FrameSynchronizer
from oxygen_ros.robot.robot_file import load_robot
from oxygen_ros.srv import QueryMemory, SetInstruction

CASES = Path(__file__).parent / 'data' / 'cases'
ROBOT = load_robot('unitree_g1')
SECOND = 1_000_000_000


@pytest.fixture
def model_file(tmp_path):
    path = tmp_path / 'small.yaml'
    path.write_text(yaml.safe_dump(small_config(**{**SIZES, 'action_dim': 32, 'horizon': 20, 'prompt_tokens': 60})))
    return str(path)


def settings(**values):
    return [word for name, value in values.items() for word in ('-p', f'{name}:={value}')]


def inference(graph, folder, model_file, **more):
    return graph.start('inference', '--use-sim-time', *settings(
        autostart='true', allow_random_weights='true', model=model_file, threads='1',
        **{'memory.path': folder / 'memory.db', **more}))


def test_without_a_clock_both_nodes_say_so_serve_and_end(ros_graph, tmp_path, model_file):
    """Case 89: nobody publishes /clock. Silence would be all that a user sees."""
    case = CASES / '89-sim-time-without-clock'
    expected = json.loads((case / 'case.json').read_text())['expected']
    assert json.loads((case / 'params.json').read_text()) == {'use_sim_time': True}
    trajectories, commands = ros_graph.listen(JointTrajectory, 'joint_trajectory'), ros_graph.listen(
        JointState, 'joint_commands')
    frames, status = ros_graph.listen(Frame, 'frames'), ros_graph.listen(EngineStatus, 'status')
    nodes = [inference(ros_graph, tmp_path, model_file),
             ros_graph.start('perception', '--use-sim-time', *settings(
                 robot='""', cameras='left,right', camera_topics='/left/image_raw,/right/image_raw'))]
    clients = {type_: ros_graph.node.create_client(type_, name)
               for type_, name in ((QueryMemory, 'query_memory'), (SetInstruction, 'set_instruction'))}
    assert ros_graph.spin_until(lambda: all(client.service_is_ready() for client in clients.values())
                                and any(message.state == 'active' for message in status), 60)
    ros_graph.start('replay', str(case / 'bag'), '--wait-for-subscribers', '2', '--loop')
    began = time.monotonic()
    while time.monotonic() - began < expected['report_within_s'] / 2:
        ros_graph.spin_for(0.5)
    for client in clients.values():
        future = client.call_async(client.srv_type.Request(instruction='wave') if client.srv_type is SetInstruction
                                   else client.srv_type.Request(limit=1))
        assert ros_graph.spin_until(future.done, 15)
        assert getattr(future.result(), 'success', True)
    assert not trajectories and not commands and not frames
    for process in nodes:
        assert 'nothing has come on /clock' in ros_graph.stop(process)


class World:
    """A clock and frames of the test's own: simulated time is what it says."""

    def __init__(self, graph):
        self.graph, self.now_ns, self.number = graph, 100 * SECOND, 0
        self._clock = graph.node.create_publisher(Clock, '/clock', 10)
        self._frames = graph.node.create_publisher(Frame, 'frames', 2)
        self._next_frame_ns = 0
        self.ticks = set()

    def run(self, seconds, step, rate):
        """Let so many simulated seconds pass in steps of so many, at so many times real time."""
        began, start_ns = time.monotonic(), self.now_ns
        for number in range(1, round(seconds / step) + 1):
            self.now_ns = start_ns + round(number * step * SECOND)
            self.ticks.add(self.now_ns)
            self._clock.publish(Clock(clock=time_to_msg(self.now_ns)))
            if self.now_ns >= self._next_frame_ns:
                self._next_frame_ns = self.now_ns + SECOND // 10
                self._publish_frame()
            self.graph.spin_for(max(0.0, began + number * step / rate - time.monotonic()))

    def jump(self, to_ns):
        self.now_ns, self._next_frame_ns = to_ns, 0

    def _publish_frame(self):
        self.number += 1
        picture = np.full((56, 56, 3), self.number % 256, dtype=np.uint8)
        self._frames.publish(frame_to_msg(Observation(
            self.number, self.now_ns, {'head': picture, 'front': picture}, tuple(joint.name for joint in ROBOT.joints),
            np.array([joint.default for joint in ROBOT.joints]))))


def test_timers_and_stamps_follow_the_clock_whatever_it_does(ros_graph, tmp_path, model_file):
    trajectories = ros_graph.listen(JointTrajectory, 'joint_trajectory', 100)
    commands = ros_graph.listen(JointState, 'joint_commands', 1000)
    status = ros_graph.listen(EngineStatus, 'status')
    process = inference(ros_graph, tmp_path, model_file, **{'command.rate': 10.0, 'speech.rate': 1.0})
    world = World(ros_graph)
    assert ros_graph.spin_until(lambda: any(message.state == 'active' for message in status), 60)

    def phase(seconds, step, rate):
        """Return stamps in seconds of the trajectories and of the commands that came in a phase."""
        before = len(trajectories), len(commands)
        world.run(seconds, step, rate)
        count = -1
        while len(commands) > count:  # what is under way
            count = len(commands)
            ros_graph.spin_for(0.4)
        return [[time_from_msg(message.header.stamp) / SECOND for message in messages[count:]]
                for messages, count in zip((trajectories, commands), before)]

    # At real time first. A busy machine may be late with anything, so all bounds here are on one side.
    chunks, sent = phase(2.0, 0.01, 1.0)
    assert len(chunks) >= 2 and len(sent) >= 5
    # Slower than real: by real time the commands would be 0.025 s apart on the clock.
    chunks, sent = phase(1.5, 0.01, 0.25)
    assert len(chunks) <= 8 and np.quantile(np.diff(sent), 0.25) >= 0.089
    # Quicker: by real time they would be 0.3 s apart.
    chunks, sent = phase(9.0, 0.01, 3.0)
    assert len(chunks) >= 3 and np.quantile(np.diff(sent), 0.25) <= 0.2
    # Coarse: a timer cannot fire more often than the clock ticks, and does not make up for it in a burst.
    chunks, sent = phase(6.0, 0.25, 2.0)
    assert len(chunks) >= 3 and 0 < len(sent) <= 26 and min(np.diff(sent)) >= 0.249
    assert {round(stamp * 100) for stamp in sent} <= {round(tick / SECOND * 100) for tick in world.ticks}
    # Back to the beginning, as in a loop: it goes on at once, nothing bears a time that is gone.
    world.jump(100 * SECOND)
    chunks, sent = phase(2.0, 0.01, 1.0)
    assert len(chunks) >= 1 and max(sent) <= 102.1 and sent[-1] - sent[0] > 0.7
    errors = ros_graph.stop(process)
    assert errors.count('clock jumped back') == 1


@pytest.mark.parametrize('tick', [SECOND // 4, SECOND // 100])
def test_pictures_that_are_ahead_of_a_coarse_clock_are_taken(tick):
    """They were taken after the last tick: in the future, for a node that has only /clock."""
    picture = np.zeros((4, 4, 3), np.uint8)
    synchronizer = FrameSynchronizer([Camera('left'), Camera('right')], JointMerger(), SyncOptions(rate_hz=0))
    made = []
    for number in range(50):
        stamp_ns = 100 * SECOND + number * SECOND // 30
        now_ns = stamp_ns // tick * tick
        for camera in ('left', 'right'):
            assert synchronizer.add_image(camera, stamp_ns, now_ns, lambda: picture) is SyncEvent.RECEIVED
        synchronizer.add_joints(['a'], [0.5], [], stamp_ns, now_ns)
        frame = synchronizer.take(now_ns)
        made.append(frame.observation.stamp_ns)
    assert made == [100 * SECOND + number * SECOND // 30 for number in range(50)]


def test_looped_recording_in_simulated_time_gives_its_frames_in_every_loop(ros_graph):
    """Case 90: /clock and stamps go from 105 s back to 100 s."""
    case = CASES / '90-clock-jumps-back'
    expected = json.loads((case / 'case.json').read_text())['expected']
    frames = ros_graph.listen(Frame, 'frames', 100)
    topics = ('/left/image_raw', '/right/image_raw')
    reliable = [f'qos_overrides.{topic}.{{}}.reliability:=reliable' for topic in topics]
    perception = ros_graph.start('perception', '--use-sim-time', *settings(
        robot='""', cameras='left,right', camera_topics=','.join(topics), rate=0.0, image_height=0, image_width=0),
        *[word for rule in reliable for word in ('-p', rule.format('subscription'))])
    replay = ros_graph.start('replay', str(case / 'bag'), '--rate', '1.0', '--wait-for-subscribers', '20',
                             *[word for rule in reliable for word in ('-p', rule.format('publisher'))])
    assert ros_graph.spin_until(lambda: replay.poll() is not None, 60)
    ros_graph.spin_for(0.5)
    ros_graph.stop(perception)
    stamps = [time_from_msg(frame.header.stamp) for frame in frames]
    back = [index for index in range(1, len(stamps)) if stamps[index] < stamps[index - 1]]
    assert len(back) == 1, stamps
    # A busy machine makes one frame of several; test_synchronizer.py counts all of them. Here: both loops give frames,
    # up to the jump and from it on.
    assert len(frames) <= expected['pairs'] + expected['tolerance']
    assert back[0] >= 10 and len(frames) - back[0] >= 10
    assert stamps[back[0]] < 101 * SECOND and stamps[back[0] - 1] > 104 * SECOND
    for frame in frames:
        images = [time_from_msg(image.header.stamp) for image in frame.images]
        assert max(images) - min(images) < 50_000_000
