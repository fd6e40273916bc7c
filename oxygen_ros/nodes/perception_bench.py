"""
Benchmark of the perception node: what cameras and joint states cost it, and how soon a frame is ready.

The node runs as a process of its own, as on a robot. This process publishes to it and listens to its frames; its own
work is no part of the figures. Pictures are made, not recorded: smooth shapes with sensor noise, JPEG of quality 85.
"""

from __future__ import annotations

import argparse
import array
import json
import os
import struct
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field

import cv2
import numpy as np
import psutil
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.executors import ExternalShutdownException, ShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.serialization import serialize_message
from sensor_msgs.msg import CompressedImage, JointState

from oxygen_ros.demo.domain import free_domain
from oxygen_ros.errors import OxygenError
from oxygen_ros.msg import Frame
from oxygen_ros.perception.compressed import decode_compressed
from oxygen_ros.perception.resize import resize_with_pad
from oxygen_ros.processes import ProcessGroup
from oxygen_ros.robot.robot_file import load_robot

PICTURES = 30          # different ones of each camera
START_SECONDS = 20.0   # for the node to come up
SETTLE_SECONDS = 3.0   # before anything is measured
STAMP_OFFSET = 4       # of header.stamp in a serialised message, behind the four bytes of its encapsulation

REPORT = '''\
{cameras} JPEG cameras of {width}x{height} at {camera_rate:g} Hz, {apart_ms:g} ms apart,
joint states at {joint_rate:g} Hz:
  published: {pictures_per_second:.1f} pictures and {joints_per_second:.0f} joint states per second
  {frames_per_second:.1f} frames per second
  {cores:.3f} cores of CPU time in the perception node
  arrival of the later picture -> frame of 224 pixels is ready: {ready_ms_p50:.1f} ms (p50)
  publication of the later picture -> frame is received, two ways through DDS: {end_to_end_ms_p50:.1f} ms (p50), \
{end_to_end_ms_p99:.1f} ms (p99)
  to decode and resize one picture alone took {picture_ms_p50:.1f} ms (p50), CPU time {picture_cpu_ms_p50:.1f} ms
  load of the {processors} processors before: {load:.1f}; times tell nothing about the node unless it is near 0'''


@dataclass
class Measured:
    """What the listener saw; times in seconds."""

    frames: int = 0
    late: list[float] = field(default_factory=list)  # publication of the newer picture -> frame is here
    ready: list[float] = field(default_factory=list)  # its arrival at the node -> frame is ready, medians


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the benchmark."""
    parser.add_argument('--seconds', type=float, default=20.0, help='how long to measure (default %(default)s)')
    parser.add_argument('--cameras', type=int, default=2, help='number of cameras (default %(default)s)')
    parser.add_argument('--camera-rate', type=float, default=30.0, help='pictures per second of each camera')
    parser.add_argument('--joint-rate', type=float, default=500.0, help='joint states per second')
    parser.add_argument('--rate', type=float, default=10.0,
                        help='frames per second at most, 0 for every pair (default %(default)s, that of the node)')
    parser.add_argument('--apart', type=float, default=10.0, metavar='MS',
                        help='milliseconds between the pictures of the cameras (default %(default)s); 0 publishes them '
                             'at the same moment, as cameras with a common trigger do')
    parser.add_argument('--size', type=int, nargs=2, default=(640, 480), metavar=('WIDTH', 'HEIGHT'),
                        help='size of the pictures (default 640 480)')
    parser.add_argument('--json', metavar='FILE', help='write the figures there as well')


def main(arguments: argparse.Namespace) -> int:
    """Run the benchmark and print its figures."""
    figures = run(arguments)
    print(report(figures))
    if arguments.json:
        with open(arguments.json, 'w', encoding='utf-8') as file:
            json.dump(figures, file, indent=1)
    return 0


def report(figures: dict[str, float]) -> str:
    """Return the figures as text."""
    return REPORT.format_map(figures)


def run(arguments: argparse.Namespace) -> dict[str, float]:
    """
    Start the node, feed it, and return the figures.

    :raises OxygenError: the node does not come up, or gives no frames.
    """
    load = os.getloadavg()[0]
    os.environ.update(ROS_DOMAIN_ID=str(free_domain()), ROS_AUTOMATIC_DISCOVERY_RANGE='LOCALHOST')
    names = [f'camera{number}' for number in range(arguments.cameras)]
    words = [sys.executable, '-m', 'oxygen_ros', 'perception', '-p', f'rate:={arguments.rate}',
             '-p', 'cameras:=' + ','.join(names),
             '-p', 'camera_topics:=' + ','.join(f'/{name}/compressed' for name in names)]
    rclpy.init()
    node = rclpy.create_node('perception_bench')
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    spinning = threading.Thread(target=_spin, args=(executor,), daemon=True)
    stop = threading.Event()
    feeder = _Feeder(node, names, arguments)
    feeding = threading.Thread(target=feeder.run, args=(stop,), daemon=True)
    measured = Measured()
    _listen(node, measured)
    try:
        with ProcessGroup() as group:
            child = group.start('perception', words, stdout=subprocess.DEVNULL)
            spinning.start()
            feeding.start()
            end = time.monotonic() + START_SECONDS
            while not measured.frames:
                if time.monotonic() > end or group.ended:
                    raise OxygenError('the perception node gives no frames: start `oxygen_ros perception` to see why')
                time.sleep(0.1)
            time.sleep(SETTLE_SECONDS)
            process = psutil.Process(child.pid)
            measured.late.clear()
            measured.ready.clear()
            frames, cpu, began = measured.frames, _cpu(process), time.monotonic()
            pictures, joints = feeder.pictures, feeder.joints
            picture = np.array(_decoding_times(_pictures(*arguments.size)[0], arguments.seconds)) * 1e3
            frames, cpu, wall = measured.frames - frames, _cpu(process) - cpu, time.monotonic() - began
            pictures, joints = feeder.pictures - pictures, feeder.joints - joints
            late, ready = np.array(measured.late) * 1e3, np.array(measured.ready) * 1e3
    finally:
        stop.set()
        if feeding.ident is not None:
            feeding.join(timeout=5.0)
        executor.shutdown(timeout_sec=1.0)
        rclpy.try_shutdown()
        if spinning.ident is not None:
            spinning.join(timeout=5.0)
    return {'cameras': len(names), 'width': arguments.size[0], 'height': arguments.size[1],
            'apart_ms': arguments.apart, 'camera_rate': arguments.camera_rate,
            'joint_rate': arguments.joint_rate, 'seconds': wall,
            'load': load, 'processors': os.cpu_count() or 1,
            'pictures_per_second': pictures / wall, 'joints_per_second': joints / wall,
            'picture_ms_p50': float(np.median(picture[:, 0])), 'picture_cpu_ms_p50': float(np.median(picture[:, 1])),
            'frames_per_second': frames / wall, 'cores': cpu / wall,
            'ready_ms_p50': float(np.median(ready)) if len(ready) else float('nan'),
            'end_to_end_ms_p50': float(np.percentile(late, 50)), 'end_to_end_ms_p99': float(np.percentile(late, 99))}


def _spin(executor: SingleThreadedExecutor) -> None:
    try:
        executor.spin()
    except (ExternalShutdownException, ShutdownException):
        pass


def _decoding_times(picture: CompressedImage, seconds: float) -> list[tuple[float, float]]:
    """
    Wait, and now and then decode and resize a picture here: how quick the machine is at the moment.

    :return: seconds on the clock, and of CPU time.
    """
    times, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.25)
        began, cpu = time.perf_counter(), time.thread_time()
        resize_with_pad(decode_compressed(picture.format, picture.data), 224, 224)
        times.append((time.perf_counter() - began, time.thread_time() - cpu))
    return times


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _listen(node: Node, measured: Measured) -> None:
    """Take frames as bytes, so that listening costs little, and the node's own figure from its diagnostics."""
    def frame(data: bytes) -> None:
        now = time.time()
        seconds, nanoseconds = struct.unpack_from('<iI', data, STAMP_OFFSET)
        measured.frames += 1
        measured.late.append(now - seconds - nanoseconds * 1e-9)

    def diagnostics(message: DiagnosticArray) -> None:
        for status in message.status:
            measured.ready += [float(item.value) / 1e3 for item in status.values if item.key == 'ready_ms']

    node.create_subscription(Frame, 'frames', frame, 10, raw=True)
    node.create_subscription(DiagnosticArray, '/diagnostics', diagnostics, 10)


class _Feeder:
    """Publishes pictures and joint states that were serialised before; only their stamps are new."""

    def __init__(self, node: Node, cameras: list[str], arguments: argparse.Namespace) -> None:
        best_effort = QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)
        self._cameras = [node.create_publisher(CompressedImage, f'/{name}/compressed', best_effort)
                         for name in cameras]
        self._joint_publisher = node.create_publisher(JointState, 'joint_states', 10)
        self.pictures = self.joints = 0  # published so far
        self._periods = 1 / arguments.camera_rate, 1 / arguments.joint_rate
        self._apart = arguments.apart / 1e3
        self._pictures = [bytearray(serialize_message(picture)) for picture in _pictures(*arguments.size)]
        joints = load_robot('unitree_g1').joints
        zeros = array.array('d', [0.0] * len(joints))
        self._joint_state = bytearray(serialize_message(JointState(
            name=[joint.name for joint in joints], position=array.array('d', [joint.default for joint in joints]),
            velocity=zeros, effort=zeros)))

    def run(self, stop: threading.Event) -> None:
        """Publish until told to stop."""
        camera_period, joint_period = self._periods
        now = time.monotonic()
        joint_due = now
        picture_due = [now + number * self._apart for number in range(len(self._cameras))]
        while not stop.is_set():
            now = time.monotonic()
            if now >= joint_due:
                self._joint_publisher.publish(_stamped(self._joint_state))
                self.joints += 1
                joint_due = max(joint_due + joint_period, now - joint_period)
            for number, publisher in enumerate(self._cameras):
                if now >= picture_due[number]:
                    publisher.publish(_stamped(self._pictures[self.pictures % PICTURES]))
                    picture_due[number] += camera_period
                    self.pictures += 1
            time.sleep(max(0.0, min(joint_due, *picture_due) - time.monotonic()))


def _stamped(message: bytearray) -> bytes:
    """Return a serialised message with the time of now in its header."""
    struct.pack_into('<iI', message, STAMP_OFFSET, *divmod(time.time_ns(), 1_000_000_000))
    return bytes(message)


def _pictures(width: int, height: int) -> list[CompressedImage]:
    noise = np.random.default_rng(0)
    y, x = np.mgrid[0:height, 0:width]
    messages = []
    for index in range(PICTURES):
        scene = np.stack([127 + 100 * np.sin((x + 9 * index) / 60), 0.5 * y, (x + y) / 8], axis=-1)
        picture = np.clip(scene + noise.normal(0, 6, scene.shape), 0, 255).astype(np.uint8)
        _, data = cv2.imencode('.jpg', picture, (cv2.IMWRITE_JPEG_QUALITY, 85))
        messages.append(CompressedImage(format='jpeg', data=array.array('B', data.tobytes())))
    return messages
