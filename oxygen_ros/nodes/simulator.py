"""
Node `simulator`: a two-armed humanoid at a table, in MuJoCo. Cameras, joint states and clock out, joint commands in.

Threads: everything runs in the thread of the executor. The simulation is made there too, in the first callback, because
OpenGL ties its pictures to the thread that it was started in.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rclpy.clock import Clock, ClockType
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.publisher import Publisher
from rclpy.qos import QoSProfile
from rclpy.qos_overriding_options import QoSOverridingOptions
from rosgraph_msgs.msg import Clock as ClockMsg
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Header, String
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory

from oxygen_ros.nodes.conversion import image_to_msg, time_from_msg, time_to_msg
from oxygen_ros.nodes.parameters import declare_parameters
from oxygen_ros.nodes.runner import add_node_arguments, run_node
from oxygen_ros.parameters import NodeParameter
from oxygen_ros.robot.joints import MissingJoint
from oxygen_ros.robot.robot_file import load_robot
from oxygen_ros.simulation.controller import TrajectoryFollower
from oxygen_ros.simulation.robot_model import ACTUATED, CAMERAS, MAX_IMAGE_SIZE
from oxygen_ros.simulation.simulation import Simulation
from oxygen_ros.simulation.viewer import open_viewer
from oxygen_ros.suite import dds_environment

PARAMETERS = (
    NodeParameter('seed', 0, 'Scene: equal seeds are equal scenes. Set it while the node runs to get another scene.',
                  0, 2**31 - 1, changeable=True),
    NodeParameter('simulated_time', False, 'Publish /clock and stamp with simulated time; the other nodes need '
                  'use_sim_time. Otherwise it keeps up with the clock of the machine and stamps with that.'),
    NodeParameter('speed', 1.0, 'How quick simulated time goes at most: 2.0 is twice as quick as real; 0 stops it.',
                  0.0, 100.0, changeable=True),
    NodeParameter('commands', 'joint_commands', 'Topic that moves the robot: positions for now, or trajectories.',
                  choices=('joint_commands', 'joint_trajectory')),
    NodeParameter('image_rate', 10.0, 'Pictures per second of each camera.', 0.1, 100.0),
    NodeParameter('image_size', 112, 'Height and width of the pictures, in pixels.', 8, MAX_IMAGE_SIZE),
    NodeParameter('image_noise', 1.0, 'Noise of the pictures, as real cameras have it: standard deviation in steps of '
                  'brightness, of 255.', 0.0, 50.0),
    NodeParameter('joint_rate', 50.0, 'Joint states per second.', 1.0, 500.0),
    NodeParameter('view_rate', 0.0, 'Pictures per second on the topic view, of robot and table for people to look at; '
                  '0 for none.', 0.0, 100.0),
    NodeParameter('view_smooth', True, 'Smooth edges in the pictures on view, which takes three times as long.'),
    NodeParameter('truth_rate', 0.0, 'Messages per second on the topic truth, what is where as JSON; 0 for none.',
                  0.0, 100.0),
    NodeParameter('viewer', False, 'Open the interactive viewer of MuJoCo; needs a display.'),
    NodeParameter('tf_frame', 'base_link', 'TF frame of the robot base.'),
)

TICK_NS = 10_000_000  # of simulated time: commands are taken and messages published at such moments
WALL_PERIOD = 0.01  # s
MAX_LAG = 0.2  # s: what is further behind is not made up for
MAX_BURST = 0.05  # s, likewise in simulated time
VIEW_SIZE = (640, 480)
NANOSECONDS = 1_000_000_000


class SimulatorNode(Node):
    """
    Drives a Simulation in time and wires its topics.

    :param node_arguments: handed on to rclpy's Node.
    :raises ConfigError: a parameter is wrong. What the simulation needs and is missing raises in the first callback.
    """

    def __init__(self, **node_arguments: Any) -> None:
        super().__init__('simulator', **node_arguments)
        self._values = declare_parameters(self, PARAMETERS)
        self.simulation: Simulation | None = None  # None until the first callback
        # Called after each TICK_NS with its stamp, and whether pictures of it were published: for evaluations.
        self.on_tick: Callable[[int, bool], None] = lambda stamp_ns, pictures: None
        self._follower: TrajectoryFollower | None = None
        self._viewer = None
        self._due = dict.fromkeys(('images', 'joints', 'view', 'truth'), 0)
        self._random = np.random.default_rng(0)
        self._refused = ''
        self._behind = False
        values = self._values
        topics = load_robot('openarm').cameras
        self._cameras = {camera: self._publish_on(Image, topics[camera], 5) for camera in CAMERAS}
        self._joints = self._publish_on(JointState, 'joint_states', 10)
        self._view = self._publish_on(Image, 'view', 5) if values['view_rate'] else None
        self._truth = self._publish_on(String, 'truth', 10) if values['truth_rate'] else None
        self._clock_publisher = self.create_publisher(ClockMsg, '/clock', 50) if values['simulated_time'] else None
        message_type = JointTrajectory if values['commands'] == 'joint_trajectory' else JointState
        self._subscription = self.create_subscription(message_type, values['commands'], self._on_command, 10)
        self.create_service(Trigger, '~/reset', self._on_reset)
        self.add_post_set_parameters_callback(self._on_change)
        self._wall_s = time.monotonic()
        self._owed_s = 0.0
        self._timer = self.create_timer(WALL_PERIOD, self._tick, clock=Clock(clock_type=ClockType.STEADY_TIME))

    def destroy_node(self) -> None:
        """Close the viewer, then destroy the node."""
        if self.simulation is not None and self._viewer is not None:
            self._viewer.close()
        super().destroy_node()

    @property
    def now_ns(self) -> int:
        """Time that stamps have: simulated, or of the clock of the machine."""
        if self._clock_publisher is None:
            return self.get_clock().now().nanoseconds
        return self.simulation.time_ns if self.simulation else 0

    def start(self) -> Simulation:
        """
        Make the simulation, if it is not there yet.

        :raises ConfigError: mujoco, the robot or OpenGL is missing.
        """
        if self.simulation is None:
            simulation = Simulation(image_size=self._values['image_size'], seed=self._values['seed'])
            self._viewer = open_viewer(simulation) if self._values['viewer'] else None
            self._follower = TrajectoryFollower(ACTUATED, simulation.commanded)
            self.simulation = simulation
            self._log_scene()
            self._wall_s = time.monotonic()
        return self.simulation

    def advance(self, seconds: float) -> None:
        """Let simulated time pass, in seconds, and publish what falls due. With speed 0 only this moves the time."""
        simulation = self.start()
        self._owed_s += seconds
        while self._owed_s >= TICK_NS / NANOSECONDS - 1e-9:
            self._owed_s -= TICK_NS / NANOSECONDS
            if self._values['commands'] == 'joint_trajectory':
                simulation.command(self._follower.sample(self.now_ns), ACTUATED)
            simulation.step(TICK_NS / NANOSECONDS)
            self._publish()

    def _publish_on(self, message_type: type, topic: str, depth: int) -> Publisher:
        return self.create_publisher(message_type, topic, copy.copy(QoSProfile(depth=depth)),
                                     qos_overriding_options=QoSOverridingOptions.with_default_policies())

    def _tick(self) -> None:
        self.start()
        now_s = time.monotonic()
        passed, self._wall_s = now_s - self._wall_s, now_s
        if self._clock_publisher is not None:
            # On a slow machine simulated time goes slower: the others get their turn after every few ticks.
            self.advance(min(passed, MAX_BURST) * self._values['speed'])
        else:
            self._note_lag(passed)
            self.advance(min(passed, MAX_LAG) * self._values['speed'])
        if self._viewer is not None:
            self._viewer.sync()

    def _note_lag(self, passed: float) -> None:
        if passed > MAX_LAG and not self._behind:
            self.get_logger().warning(f'the machine is too slow: the simulation was {passed:.2f} s behind')
            self._behind = True
        elif passed < 2 * WALL_PERIOD:
            self._behind = False

    def _publish(self) -> None:
        simulation, stamp_ns = self.simulation, self.now_ns
        if self._clock_publisher is not None:
            self._clock_publisher.publish(ClockMsg(clock=time_to_msg(stamp_ns)))
        if self._falls_due('joints', self._values['joint_rate']):
            self._joints.publish(joints_to_msg(simulation, stamp_ns, self._values['tf_frame']))
        pictures = self._falls_due('images', self._values['image_rate'])
        if pictures:
            for camera, image in simulation.images().items():
                self._cameras[camera].publish(image_to_msg(self._noisy(image), stamp_ns, f'{camera}_camera'))
        if self._view is not None and self._falls_due('view', self._values['view_rate']):
            picture = simulation.view(*VIEW_SIZE, self._values['view_smooth'])
            self._view.publish(image_to_msg(picture, stamp_ns, self._values['tf_frame']))
        if self._truth is not None and self._falls_due('truth', self._values['truth_rate']):
            self._truth.publish(String(data=json.dumps(truth_to_dict(simulation, stamp_ns))))
        self.on_tick(stamp_ns, pictures)

    def _noisy(self, image: np.ndarray) -> np.ndarray:
        """Return a picture with noise: without, a robot that stands still would look like a frozen camera."""
        noise = self._values['image_noise']
        if not noise:
            return image
        return np.clip(image + self._random.normal(0, noise, image.shape), 0, 255).round().astype(np.uint8)

    def _falls_due(self, what: str, rate: float) -> bool:
        now_ns = self.simulation.time_ns
        if now_ns < self._due[what]:
            return False
        period_ns = round(NANOSECONDS / rate)
        next_ns = self._due[what] + period_ns
        self._due[what] = next_ns if next_ns > now_ns else now_ns + period_ns
        return True

    def _on_command(self, message: JointState | JointTrajectory) -> None:
        simulation = self.start()
        try:
            if isinstance(message, JointState):
                simulation.command(np.array(message.position), message.name)
            else:
                self._follow(message)
        except (MissingJoint, ValueError) as error:
            if str(error) != self._refused:
                self.get_logger().warning(f'command refused: {error}')
            self._refused = str(error)
            return
        self._refused = ''

    def _follow(self, message: JointTrajectory) -> None:
        """Take a trajectory; one without points stops the robot where it is commanded, as controllers have it."""
        if not message.points:
            self._follower.hold(self._follower.sample(self.now_ns))
            return
        start_ns = time_from_msg(message.header.stamp) or self.now_ns
        times_ns = [start_ns + point.time_from_start.sec * NANOSECONDS + point.time_from_start.nanosec
                    for point in message.points]
        self._follower.follow(message.joint_names, [point.positions for point in message.points], times_ns, self.now_ns)

    def _on_change(self, parameters: list[Parameter]) -> None:
        for parameter in parameters:
            if parameter.name in ('seed', 'speed'):
                self._values[parameter.name] = parameter.value
            if parameter.name == 'seed':
                self.reset(parameter.value)

    def _on_reset(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        self.reset(self._values['seed'])
        response.success, response.message = True, self._description()
        return response

    def reset(self, seed: int) -> None:
        """Begin anew with the scene of a seed, the robot at rest."""
        self.start().reset(seed)
        self.was_reset()
        self._log_scene()

    def was_reset(self) -> None:
        """Forget commands from before; for those who have reset the simulation themselves."""
        self._follower.hold(self.simulation.commanded)

    def _description(self) -> str:
        objects = ', '.join(f'{item.name} {item.region}' for item in self.simulation.scene.objects)
        return f'scene {self.simulation.seed}: {objects}'

    def _log_scene(self) -> None:
        self.get_logger().info(self._description())


def joints_to_msg(simulation: Simulation, stamp_ns: int, tf_frame: str) -> JointState:
    """Return the joint state of a simulation."""
    positions, velocities = simulation.joint_state()
    return JointState(header=Header(stamp=time_to_msg(stamp_ns), frame_id=tf_frame), name=list(ACTUATED),
                      position=positions.tolist(), velocity=velocities.tolist())


def truth_to_dict(simulation: Simulation, stamp_ns: int) -> dict:
    """Return what is so, for JSON."""
    truth = simulation.truth()
    return {'stamp_ns': stamp_ns, 'seed': simulation.seed, 'objects': [item.to_dict() for item in truth.objects],
            'fingertips': {arm: tip.tolist() for arm, tip in truth.fingertips.items()},
            'joints': truth.joints.tolist(), 'from_rest': truth.from_rest}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `oxygen_ros simulate`. Each one is short for a parameter of the node."""
    parser.add_argument('--seed', metavar='N', help='scene; equal seeds are equal scenes')
    parser.add_argument('--speed', metavar='X', help='2 is twice as quick as real; with --simulated-time')
    parser.add_argument('--simulated-time', action='store_true', help='publish /clock, stamp with simulated time')
    parser.add_argument('--viewer', action='store_true', help='open the viewer of MuJoCo; needs a display')
    add_node_arguments(parser, PARAMETERS)


def main(arguments: argparse.Namespace) -> int:
    """Run the node."""
    for name in ('seed', 'speed'):
        if (value := getattr(arguments, name)) is not None:
            arguments.param.append(f'{name}:={value}')
    for name in ('simulated_time', 'viewer'):
        if getattr(arguments, name):
            arguments.param.append(f'{name}:=true')
    os.environ.update(dds_environment())  # before the context is made: large images
    return run_node(SimulatorNode, arguments)
