"""
Node `record`: records topics as they come, without deserializing anything, on machines without rosbag2.

Threads: the executor takes messages and puts them into a queue; a thread of its own writes, so that a slow disk delays
no subscription. What has been flushed, once a second, can be read again even after `kill -9`.
"""

from __future__ import annotations

import argparse
import json
import queue
import sys
import threading
import time
from collections import Counter
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from rclpy.clock import Clock, ClockType
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy

from oxygen_ros.errors import BagError, ConfigError
from oxygen_ros.nodes.clock_watch import NO_CLOCK
from oxygen_ros.nodes.parameters import NodeParameter, declare_parameters
from oxygen_ros.nodes.recorded_qos import offered_qos
from oxygen_ros.nodes.runner import NodeFinished, add_node_arguments, run_node
from oxygen_ros.recording import profile_topics, read_qos_file, wanted
from oxygen_ros.replay.bag import Bag
from oxygen_ros.replay.bag_writer import BagWriter
from oxygen_ros.replay.message_types import definition_of_installed

PARAMETERS = (
    NodeParameter('output', '', 'Folder to make for the recording. Empty: recording_ with the time of the start.'),
    NodeParameter('topics', (), 'Topics to record, also patterns like /camera/*. Empty: cameras of the robot, inputs '
                  'and outputs of the suite.'),
    NodeParameter('all', False, 'Record every topic that there is, but /rosout and /parameter_events.'),
    NodeParameter('robot', 'unitree_g1', 'Robot file: gives the camera topics. Empty: none.'),
    NodeParameter('frames', False, 'Record the topic frames as well, which is large.'),
    NodeParameter('qos_file', 'record_qos', 'QoS of the subscriptions by topic: a YAML file. Empty: as offered.'),
    NodeParameter('compress', False, 'Compress with zstd, chunk by chunk.'),
    NodeParameter('flush', 1.0, 'Seconds after which what came is safe from a kill of the process.', 0.05, 60.0),
    NodeParameter('duration', 0.0, 'Seconds to record; 0 records until the process is ended.', 0.0),
)

SEARCH_SECONDS = 0.25
DEPTH = 200  # of the queue of a subscription that no override says more about
QUEUE_BYTES = 512 * 2**20  # that may wait for the disk
SKIPPED = ('/rosout', '/parameter_events')


class RecordNode(Node):
    """Records until it is destroyed; `report` then says what is in the recording and what was lost."""

    def __init__(self, **options: Any) -> None:
        super().__init__('record', **options)
        values = declare_parameters(self, PARAMETERS)
        # As the command line of a robot gives them: relative names are in the root, as far as they are no patterns.
        self._patterns = [name if name.startswith(('/', '*')) else f'/{name}' for name in values['topics']]
        self._asked = tuple(self._patterns)
        if values['all']:
            self._patterns = ['*']
        elif not self._patterns:
            self._patterns = profile_topics(values['robot'], self.get_namespace(), values['frames'])
        self._overrides = read_qos_file(values['qos_file']) if values['qos_file'] else {}
        folder = values['output'] or datetime.now().strftime('recording_%Y_%m_%d-%H_%M_%S')
        self._writer = BagWriter(folder, values['compress'])
        self.received: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()     # that DDS did not deliver, by the numbers that publishers give
        self.dropped: Counter[str] = Counter()  # that came, and the disk was too slow, or the clock did not run
        self.skipped: dict[str, str] = {}       # topic -> why it is not recorded
        self._numbers: dict[str, int] = {}      # topic with one publisher -> number of its last message
        self._sources: dict[str, int] = {}      # topic -> how many publishers it has
        self._queue: queue.SimpleQueue[tuple[str, int, bytes] | None] = queue.SimpleQueue()
        self._waiting_bytes = 0
        self._lock = threading.Lock()  # of _waiting_bytes, and of the writer while topics are added
        self._failure: BagError | None = None
        self._closed = False
        self._flush = values['flush']
        self._thread = threading.Thread(target=self._write, name='record', daemon=True)
        self._thread.start()
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._search()
        self.create_timer(SEARCH_SECONDS, self._search, clock=steady)
        if values['duration']:
            self.create_timer(values['duration'], self._finish, clock=steady)
        self._sim_time = self.get_parameter('use_sim_time').value
        self.get_logger().info(f'recording to {self._writer.folder}')

    def destroy_node(self) -> None:
        """Write what waits, finish the recording, then destroy the node."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            self._thread.join()
            try:
                self._writer.close()
            except BagError as error:
                self._failure = self._failure or error
        super().destroy_node()

    @property
    def report(self) -> dict[str, Any]:
        """
        What was received, written and found in the finished recording, by topic.

        `differences` names topics of which something is missing, `absent` those that were asked for and not there.
        """
        found, notes = self._read_back()
        topics = [{'topic': name, 'received': self.received[name], 'written': self._writer.written[name],
                   'in_recording': found[name], 'lost_by_dds': self.lost[name], 'dropped': self.dropped[name]}
                  for name in sorted({*self._sources, *self.skipped} - self.skipped.keys())]
        absent = [pattern for pattern in self._asked if not any(wanted(name, [pattern]) for name in self._sources)]
        differences = [f'{topic["topic"]}: {topic["received"]} messages received, {topic["in_recording"]} recorded'
                       for topic in topics if topic['received'] != topic['in_recording']]
        differences += [f'{topic["topic"]}: {topic["lost_by_dds"]} messages did not arrive' for topic in topics
                        if topic['lost_by_dds']]
        return {'bag': str(self._writer.folder), 'written': sum(self._writer.written.values()), 'topics': topics,
                'skipped': self.skipped, 'absent': absent, 'differences': differences, 'notes': notes}

    def _read_back(self) -> tuple[Counter[str], list[str]]:
        if self._failure is not None:
            return Counter(), [str(self._failure)]
        try:
            with Bag(self._writer.folder) as bag:
                return Counter({topic.name: topic.count for topic in bag.topics}), bag.notes
        except BagError as error:
            return Counter(), [str(error)]

    # -- subscriptions -----------------------------------------------------------------------------------------------

    def _search(self) -> None:
        """Subscribe to wanted topics that have appeared."""
        if self._failure is not None:
            raise self._failure
        for name, types in self.get_topic_names_and_types():
            if name in self.skipped or name in SKIPPED and name not in self._patterns:
                continue
            publishers = self.get_publishers_info_by_topic(name)
            if name in self._sources:
                self._sources[name] = len(publishers)
            elif publishers and wanted(name, self._patterns):
                self._subscribe(name, types, publishers)

    def _subscribe(self, name: str, types: list[str], publishers: list[Any]) -> None:
        if len(types) > 1:
            self._skip(name, f'it has several types: {", ".join(types)}')
            return
        package, kind, message = types[0].split('/')
        offered = [publisher.qos_profile for publisher in publishers]
        try:
            if kind != 'msg':
                raise ValueError(f'{types[0]} is no type of a message')
            class_ = getattr(import_module(f'{package}.msg'), message)
            definition = definition_of_installed(types[0])
            with self._lock:
                self._writer.add(name, types[0], [offered_qos(profile) for profile in offered], definition)
            self.create_subscription(class_, name, lambda data, info: self._take(name, data, info),
                                     self._qos(name, offered), raw=True)
        except (ImportError, AttributeError, ValueError, BagError) as error:
            self._skip(name, f'its type {types[0]} is not installed ({error})')
            return
        self._sources[name] = len(publishers)
        self.get_logger().info(f'recording {name} ({types[0]})')

    def _skip(self, name: str, reason: str) -> None:
        self.skipped[name] = reason
        self.get_logger().warning(f'{name} is not recorded: {reason}')

    def _qos(self, name: str, offered: list[QoSProfile]) -> QoSProfile:
        """Return what suits every publisher, with the overrides of the file where that is no contradiction."""
        reliable = all(profile.reliability == ReliabilityPolicy.RELIABLE for profile in offered)
        latched = all(profile.durability == DurabilityPolicy.TRANSIENT_LOCAL for profile in offered)
        overrides = self._overrides.get(name, {})
        reliable = reliable and overrides.get('reliability') != 'best_effort'
        latched = latched and overrides.get('durability') != 'volatile'
        keep_all = overrides.get('history') == 'keep_all'
        return QoSProfile(
            depth=overrides.get('depth', DEPTH),
            history=HistoryPolicy.KEEP_ALL if keep_all else HistoryPolicy.KEEP_LAST,
            reliability=ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
            durability=DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE)

    def _take(self, name: str, data: bytes, info: dict[str, int]) -> None:
        self.received[name] += 1
        self._count_gap(name, info.get('publication_sequence_number') or 0)
        # In real time the moment of arrival: this callback may come later.
        time_ns = 0 if self._sim_time else info.get('received_timestamp', 0)
        time_ns = time_ns or self.get_clock().now().nanoseconds
        if time_ns <= 0:
            if not self.dropped[name]:
                self.get_logger().warning(f'{name}: {NO_CLOCK}')
            self.dropped[name] += 1
            return
        with self._lock:
            full = self._waiting_bytes + len(data) > QUEUE_BYTES
            self._waiting_bytes += 0 if full else len(data)
        if full:
            if not self.dropped[name]:
                self.get_logger().error(f'{name}: messages are dropped, the disk is too slow')
            self.dropped[name] += 1
            return
        self._queue.put((name, time_ns, bytes(data)))

    def _count_gap(self, name: str, number: int) -> None:
        """Count what DDS lost. The numbers are those of one publisher, so only a topic with a single one tells."""
        if not 0 < number < 2**62 or self._sources.get(name) != 1:
            return
        last = self._numbers.get(name, 0)
        self._numbers[name] = number
        if last and number > last + 1:
            self.lost[name] += number - last - 1

    # -- writing -----------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        flushed = time.monotonic()
        try:
            while True:
                try:
                    item = self._queue.get(timeout=self._flush)
                except queue.Empty:
                    item = ()
                with self._lock:
                    if item:
                        self._waiting_bytes -= len(item[2])
                        self._writer.write_serialized(*item)
                    if item is None or time.monotonic() - flushed >= self._flush:
                        self._writer.flush()
                        flushed = time.monotonic()
                if item is None:
                    return
        except BagError as error:
            self._failure = error  # the next search ends the node with it

    def _finish(self) -> None:
        raise NodeFinished(0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `oxygen_ros record`. Each one is short for a parameter of the node."""
    parser.add_argument('--output', '-o', metavar='FOLDER', help='folder to make (recording_ with the time)')
    parser.add_argument('--topics', nargs='+', metavar='TOPIC', help='record these, patterns such as /camera/* too')
    parser.add_argument('--all', '-a', action='store_true', help='record every topic')
    parser.add_argument('--robot', metavar='NAME', help='robot file that gives the camera topics')
    parser.add_argument('--frames', action='store_true', help='record the topic frames as well')
    parser.add_argument('--compress', action='store_true', help='compress with zstd')
    parser.add_argument('--duration', metavar='S', help='seconds to record')
    parser.add_argument('--json', action='store_true', help='print the result as JSON')
    add_node_arguments(parser, PARAMETERS)


def main(arguments: argparse.Namespace) -> int:
    """Record until a signal comes. Exit code 1 when something that was published is not in the recording."""
    for name in ('output', 'robot', 'duration'):
        if (value := getattr(arguments, name)) is not None:
            arguments.param.append(f'{name}:={value}')
    for name in ('topics', 'all', 'frames', 'compress'):
        if value := getattr(arguments, name):
            arguments.param.append(f'{name}:={json.dumps(value)}')
    if arguments.output and Path(arguments.output).exists():
        raise ConfigError(f'output {arguments.output!r} exists already: choose another folder, nothing is overwritten')
    nodes: list[RecordNode] = []

    def make() -> RecordNode:
        nodes.append(RecordNode())
        return nodes[0]

    code = run_node(make, arguments)
    if not nodes:
        return code
    report = nodes[0].report
    if arguments.json:
        print(json.dumps(report))
    else:
        print(f'{report["written"]} messages on {len(report["topics"])} topics in {report["bag"]}')
        for topic in report['absent']:
            print(f'note: nothing was published on {topic}', file=sys.stderr)
        for line in [*report['differences'], *report['notes']]:
            print('error:', line, file=sys.stderr)
    return code or int(bool(report['differences'] or report['notes']))
