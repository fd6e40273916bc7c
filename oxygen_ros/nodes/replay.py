"""
Node `replay`: plays a recording onto topics with its timing, without deserializing anything.

Threads: a thread of its own waits and publishes (a timer per message would be late by the executor's queue); the
executor only serves parameters and the end of the process.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from importlib import import_module
from typing import Any

from rclpy.duration import Duration
from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.qos import QoSProfile
from rclpy.qos_overriding_options import QoSOverridingOptions

from oxygen_ros.errors import BagError, ConfigError
from oxygen_ros.nodes.lifecycle_gate import LifecycleGate
from oxygen_ros.nodes.parameters import NodeParameter, declare_parameters
from oxygen_ros.nodes.pause import PauseSwitch
from oxygen_ros.nodes.recorded_qos import publisher_qos
from oxygen_ros.nodes.runner import NodeFinished, add_node_arguments, run_node
from oxygen_ros.replay.bag import Bag, Topic
from oxygen_ros.replay.player import CLOCK_TOPIC, Order, Player, Scheduled, Timing
from oxygen_ros.replay.selection import parse_remaps, select_topics
from oxygen_ros.replay.stamps import CLOCK_TYPE, SECOND
from oxygen_ros.suite import dds_environment

PARAMETERS = (
    NodeParameter('bag', '', 'Recording to play: folder of a rosbag2 recording, or an .mcap or .db3 file.'),
    NodeParameter('rate', 1.0, 'Speed: 2.0 is twice as quick as recorded.', minimum=0.001, maximum=1000.0),
    NodeParameter('loop', False, 'Play again and again. Time jumps back at each start, unless restamp is set.'),
    NodeParameter('restamp', False, 'Move header stamps so that the recording happens now, also over loops.'),
    NodeParameter('topics', (), 'Topics to play, also patterns like /camera/*. Empty: all but outputs of this suite.'),
    NodeParameter('remap', (), 'Other names for topics: old:=new.'),
    NodeParameter('clock', 0.0, 'Rate of /clock in Hz, 0 for none. The recorded /clock is left out then.',
                  minimum=0.0, maximum=10_000.0),
    NodeParameter('start_offset', 0.0, 'Part of the recording to leave out at its beginning, in seconds.', minimum=0.0),
    NodeParameter('duration', 0.0, 'Part of the recording to play, in seconds; 0 plays to its end.', minimum=0.0),
    NodeParameter('order', Order.RECEIVE.value, 'When a message comes: at its time of recording, or at its header '
                  'stamp.',
                  choices=tuple(order.value for order in Order)),
    NodeParameter('start_paused', False, 'Begin with a pause, until the service pause (or the space key) ends it.'),
    NodeParameter('wait_for_subscribers', 2.0,
                  'Longest time to wait for a subscriber on every topic before playing, in seconds.', minimum=0.0),
    NodeParameter('wait_for_node', '', 'Lifecycle node to wait for until it is active, before playing. Empty: none.'),
)

LONG_PAUSE_NS = 5 * SECOND  # a pause in the recording that is worth a line
LONGEST_SLEEP = 0.5  # seconds after which a waiting replay looks whether it is to stop
LAST_ACKNOWLEDGEMENTS_NS = SECOND  # time in which subscribers may ask again for messages that they missed


class ReplayNode(Node):
    """Plays a recording once it is made. `report` says how it went."""

    def __init__(self, **options: Any) -> None:
        super().__init__('replay', **options)
        values = declare_parameters(self, PARAMETERS)
        if not values['bag']:
            raise ConfigError('no recording to play: give its path, or set the parameter bag')
        timing = Timing(rate=values['rate'], start_offset=values['start_offset'], duration=values['duration'],
                        loop=values['loop'], restamp=values['restamp'], clock_hz=values['clock'],
                        order=Order(values['order']))
        self._remaps = parse_remaps(values['remap'])
        self._patience = values['wait_for_subscribers']
        self._gate = LifecycleGate(self, values['wait_for_node'])
        self._bag = Bag(values['bag'])
        chosen, self._skipped = select_topics(self._bag, values['topics'], own_clock=timing.clock_hz > 0)
        self._publishers_of: dict[tuple[str, str], Publisher] = {}
        playable = [topic for topic in chosen if self._advertise(topic)]
        if timing.clock_hz:
            self._publish_on(CLOCK_TOPIC, CLOCK_TYPE, QoSProfile(depth=10))
        if self._bag.topics and not playable:
            raise BagError(f'nothing of {values["bag"]!r} can be played: '
                           + '; '.join(f'{name}: {reason}' for name, reason in self._skipped.items()))
        for name, reason in self._skipped.items():
            self.get_logger().info(f'{name} is not played: {reason}')
        self._player = Player(self._bag, playable, timing)
        self._noted = 0
        self._log_notes()
        self._exit_code: int | None = None  # None until the end was reached
        self._latest_ns = 0
        self._stop = threading.Event()
        self._pause = PauseSwitch(self, values['start_paused'])
        self._end = self.create_guard_condition(self._finish)
        self._thread = threading.Thread(target=self._play, name='replay', daemon=True)
        self._thread.start()

    def destroy_node(self) -> None:
        """Stop publishing, then destroy the node."""
        self._stop.set()
        self._pause.close()
        self._thread.join()
        super().destroy_node()
        self._bag.close()

    @property
    def report(self) -> dict[str, Any]:
        """What was played: counts by topic, differences to what was promised, lateness."""
        player = self._player
        topics = [{'topic': topic.name, 'type': topic.type, 'promised': topic.promised,
                   'published': player.delivered[topic.name, topic.type]} for topic in player.topics]
        return {'bag': str(self._bag.path), 'finished': self._exit_code is not None, 'loops': player.loops,
                'whole': player.whole, 'published': sum(topic['published'] for topic in topics), 'topics': topics,
                'skipped': self._skipped, 'differences': player.shortfalls, 'notes': player.notes + self._bag.notes,
                'latest_ms': round(self._latest_ns / 1e6, 3)}

    def _advertise(self, topic: Topic) -> bool:
        """Make the publisher of a topic. Returns False, with a reason noted, if its type cannot be published here."""
        if '/srv/' in topic.type or '/action/' in topic.type:
            self._skipped[topic.name] = f'it holds what a service or an action did ({topic.type}), which is not played'
            return False
        try:
            publisher = self._publish_on(topic.name, topic.type, publisher_qos(topic))
        except (ImportError, AttributeError, ValueError):
            self._skipped[topic.name] = f'its type {topic.type} is not installed'
            return False
        except Exception as error:  # rcl refuses names and second types of a topic in several ways
            self._skipped[topic.name] = f'it cannot be published as {topic.type}: {" ".join(str(error).split())}'
            return False
        own = [str(info.topic_type_hash) for info in self.get_publishers_info_by_topic(publisher.topic_name)
               if info.node_name == self.get_name()]
        if topic.type_hash.startswith('RIHS') and own and topic.type_hash not in own:
            self.get_logger().warning(f'{topic.name} was recorded with another definition of {topic.type}: '
                                      'subscribers may misread it')
        return True

    def _publish_on(self, name: str, type_: str, qos: QoSProfile) -> Publisher:
        package, _, message = type_.split('/')
        self._publishers_of[name, type_] = self.create_publisher(
            getattr(import_module(f'{package}.msg'), message), self._remaps.get(name, name), qos,
            qos_overriding_options=QoSOverridingOptions.with_default_policies())
        return self._publishers_of[name, type_]

    def _play(self) -> None:
        try:
            self._gate.wait(self._stop)
            self._wait_for_subscribers()
            start_ns = time.monotonic_ns()
            # The system time, not the clock of the node: that would be the /clock which this node may publish itself.
            for message in self._player.schedule(start_ns, time.time_ns()):
                message = self._wait_until(message)
                if message is None:
                    return
                self._publishers_of[message.topic, message.type].publish(message.data)
            self._log_notes()
            give_up = time.monotonic_ns() + LAST_ACKNOWLEDGEMENTS_NS
            for publisher in self._publishers_of.values():
                publisher.wait_for_all_acked(Duration(nanoseconds=max(0, give_up - time.monotonic_ns())))
            self._exit_code = 1 if self._player.shortfalls else 0
        except Exception as error:  # the process must end, and say why, whatever happens in this thread
            self.get_logger().error(f'replay failed: {" ".join(str(error).split()) or type(error).__name__}')
            self._exit_code = 1
        self._end.trigger()

    def _wait_until(self, message: Scheduled) -> Scheduled | None:
        """Sleep until a message is due. Returns it as it is to be published, None when the replay is to stop."""
        ahead = message.due_ns - time.monotonic_ns()
        if ahead > LONG_PAUSE_NS:
            self.get_logger().info(f'the recording pauses: the next message comes in {ahead / SECOND:.1f} s')
        while not self._stop.is_set():
            paused_ns = self._pause.wait_while_paused(self._stop)
            if paused_ns:
                message = self._player.postpone(message, paused_ns)
            ahead = message.due_ns - time.monotonic_ns()
            if ahead <= 0 and not self._pause.paused:
                self._latest_ns = max(self._latest_ns, -ahead)
                return message
            self._pause.changed.wait(min(max(ahead, 0) / SECOND, LONGEST_SLEEP))
        return None

    def _wait_for_subscribers(self) -> None:
        give_up = time.monotonic() + self._patience
        alone = dict(self._publishers_of)
        while alone and time.monotonic() < give_up and not self._stop.wait(0.02):
            alone = {key: publisher for key, publisher in alone.items() if not publisher.get_subscription_count()}
        if self._patience and alone and not self._stop.is_set():
            self.get_logger().info('nobody subscribes to ' + ', '.join(sorted(name for name, _ in alone)))

    def _log_notes(self) -> None:
        """Log what has come to light about the recording since the last call."""
        notes = self._player.notes + self._bag.notes
        for note in notes[self._noted:]:
            self.get_logger().warning(note)
        self._noted = len(notes)

    def _finish(self) -> None:
        raise NodeFinished(self._exit_code or 0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `oxygen_ros replay`. Each one is short for a parameter of the node."""
    parser.add_argument('bag', nargs='?', metavar='BAG', help='folder of a recording, or an .mcap or .db3 file')
    parser.add_argument('--rate', metavar='R', help='speed: 2 is twice as quick as recorded')
    parser.add_argument('--loop', action='store_true', help='play again and again')
    parser.add_argument('--restamp', action='store_true', help='move header stamps so that the recording happens now')
    parser.add_argument('--start-offset', metavar='S', help='seconds to leave out at the beginning')
    parser.add_argument('--duration', metavar='S', help='seconds of the recording to play')
    parser.add_argument('--topics', nargs='+', metavar='TOPIC',
                        help='play only these (patterns such as /camera/* too); without it, all topics but the '
                             'outputs of this suite (joint_trajectory, speech, memory, ...), which would mix with '
                             'those of the running nodes')
    parser.add_argument('--remap', nargs='+', metavar='OLD:=NEW', help='publish topics under other names')
    parser.add_argument('--order', choices=[order.value for order in Order],
                        help='play by time of recording (receive, as without it) or by header stamp')
    parser.add_argument('--start-paused', action='store_true', help='wait for the space key or the service pause')
    parser.add_argument('--clock', nargs='?', const='100', metavar='HZ', help='publish /clock (at 100 Hz)')
    parser.add_argument('--wait-for-subscribers', nargs='?', const='10', metavar='S',
                        help='wait until every topic has a subscriber, at most S seconds (10; without the option 2)')
    parser.add_argument('--info', action='store_true', help='show what the recording holds, and play nothing')
    parser.add_argument('--json', action='store_true', help='print the result as JSON')
    add_node_arguments(parser, PARAMETERS)


def main(arguments: argparse.Namespace) -> int:
    """Run the node until the recording is over. Exit code 1 when fewer messages came out than it promised."""
    if arguments.info:
        return _show_info(arguments)
    for name in ('bag', 'rate', 'start_offset', 'duration', 'clock', 'order', 'wait_for_subscribers'):
        if (value := getattr(arguments, name)) is not None:
            arguments.param.append(f'{name}:={value}')
    for name in ('topics', 'remap', 'loop', 'restamp', 'start_paused'):
        if value := getattr(arguments, name):
            arguments.param.append(f'{name}:={json.dumps(value)}')
    os.environ.update(dds_environment())  # before the context is made: large images
    nodes: list[ReplayNode] = []

    def make() -> ReplayNode:
        nodes.append(ReplayNode())
        return nodes[0]

    code = run_node(make, arguments)
    if nodes:
        _show_report(nodes[0].report, arguments.json)
    return code


def _show_report(report: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(report))
        return
    whole = report['whole'] and report['finished']
    promised = f' of {sum(topic["promised"] for topic in report["topics"])}' if whole else ''
    print(f'published {report["published"]}{promised} messages on {len(report["topics"])} topics'
          f', at most {report["latest_ms"]:.1f} ms late' + ('' if report['finished'] else ', then stopped'))
    for difference in report['differences']:
        print('error:', difference, file=sys.stderr)


def _show_info(arguments: argparse.Namespace) -> int:
    if not arguments.bag:
        raise ConfigError('no recording to show: give its path')
    with Bag(arguments.bag) as bag:
        topics = [{'topic': topic.name, 'type': topic.type, 'count': topic.count, 'promised': topic.promised,
                   'qos': [f'{qos.reliability.name.lower()}, {qos.durability.name.lower()}, depth {qos.depth}'
                           for qos in topic.qos]} for topic in bag.topics]
        if arguments.json:
            print(json.dumps({'bag': str(bag.path), 'start_ns': bag.start_ns, 'duration_s': bag.duration_ns / SECOND,
                              'count': bag.count, 'topics': topics, 'notes': bag.notes}))
            return 0
        print(f'{bag.path}: {bag.count} messages in {bag.duration_ns / SECOND:.3f} s')
        for topic in topics:
            promised = '' if topic['count'] == topic['promised'] else f' of {topic["promised"]} promised'
            print(f'{topic["count"]:>8}{promised}  {topic["topic"]}  {topic["type"]}  {"; ".join(topic["qos"])}')
        for note in bag.notes:
            print('note:', note)
    return 0
