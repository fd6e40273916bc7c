"""Says how the inputs of the perception node do: logs on edges and /diagnostics once a second."""

from __future__ import annotations

import statistics
import time
from collections import Counter, deque
from collections.abc import Mapping

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.clock import Clock, ClockType
from rclpy.event_handler import PublisherEventCallbacks
from rclpy.node import Node

from oxygen_ros.nodes import absence
from oxygen_ros.nodes.absence import Absence, Absent, common_absence, find_absence
from oxygen_ros.nodes.clock_watch import NO_CLOCK, ClockWatch
from oxygen_ros.nodes.input import Input
from oxygen_ros.nodes.qos_watch import QosWatch
from oxygen_ros.nodes.remote_text import shown
from oxygen_ros.perception.health import Alarms, Arrivals, Level, Stillness
from oxygen_ros.perception.joint_merger import JointFault, JointSnapshot
from oxygen_ros.perception.sync_options import JOINTS, SyncEvent
from oxygen_ros.perception.synchronizer import FrameSynchronizer

FRAMES, INPUTS = 'frames', 'inputs'
EVENT_SECONDS = 3.0      # after the last event of a kind it counts as over
STATE_SECONDS = 0.5      # states are raised anew by every report, so the next one ends them
OLD_SECONDS = 10.0       # behind the clock: no delay, but another clock
STILL_SECONDS = 5.0      # with the same picture again and again, until a camera counts as frozen
STILL_PICTURES = 10
LONGEST = 4000           # characters of what is said about an input

# What an event says about its input, and how bad it is.
EVENT_TEXTS = {
    SyncEvent.ZERO_STAMP: (Level.ERROR, 'its header stamps are zero and refused: set them in the driver, or the '
                                        'parameter stamps to header_or_receive'),
    SyncEvent.RECEIVE_TIME: (Level.WARN, 'its header stamps are zero, the time of arrival is used: set them in the '
                                         'driver'),
    SyncEvent.FUTURE: (Level.ERROR, 'its stamps are ahead of the node clock and refused: synchronise the clocks, or '
                                    'set use_sim_time for recorded data'),
    SyncEvent.LATE: (Level.WARN, 'it comes out of order: older than what was used already'),
    SyncEvent.DUPLICATE: (Level.WARN, 'the same stamp comes more than once: is the camera frozen, or published twice?'),
    SyncEvent.RESTART: (Level.WARN, 'its stamps went back in time: everything from before was dropped'),
    SyncEvent.NO_CLOCK: (Level.ERROR, NO_CLOCK),
}
JOINT_TEXTS = {
    JointFault.LENGTH_MISMATCH: 'messages with another number of positions than names are refused',
    JointFault.DUPLICATE_NAME: 'messages name a joint twice: it is not used',
    JointFault.LATE: 'messages come far out of order',
    JointFault.TOO_MANY: 'messages with far too many joints are refused',
}


class InputReport:
    """
    Logs and diagnostics of the inputs and of the frames. Belongs to the thread of the executor.

    :param inputs: camera name, or JOINTS -> input.
    """

    def __init__(self, node: Node, synchronizer: FrameSynchronizer, inputs: Mapping[str, Input],
                 clock_watch: ClockWatch, timeout_s: float):
        self._node = node
        self._name = node.get_fully_qualified_name().strip('/')
        self._synchronizer = synchronizer
        self._inputs = inputs
        self._clock_watch = clock_watch
        self._timeout_s = timeout_s
        self._alarms = Alarms()
        self._arrivals = {name: Arrivals(time.monotonic()) for name in (*inputs, FRAMES)}
        self._stillness = {name: Stillness() for name in inputs}
        self._counted: dict[str, Counter] = {}
        self._joints: JointSnapshot | None = None
        self._ready: deque[float] = deque(maxlen=100)
        self._number = 0
        self._qos_watch = QosWatch(node)
        self._publisher = node.create_publisher(
            DiagnosticArray, '/diagnostics', 10, event_callbacks=PublisherEventCallbacks(use_default_callbacks=False))
        self._timer = node.create_timer(1.0, self._report, clock=Clock(clock_type=ClockType.STEADY_TIME))

    def message(self, name: str, event: SyncEvent, zero_stamp: bool = False) -> None:
        """Note a message of an input and what became of it."""
        self._arrivals[name].add(time.monotonic())
        if event in (SyncEvent.FUTURE, SyncEvent.NO_CLOCK) and self._clock_watch.unsettled:
            return
        if event in EVENT_TEXTS:
            self._alarm(name, event.value, *EVENT_TEXTS[event])
        elif zero_stamp and self._synchronizer.counters[name][SyncEvent.RECEIVE_TIME]:
            self._alarm(name, SyncEvent.RECEIVE_TIME.value, *EVENT_TEXTS[SyncEvent.RECEIVE_TIME])

    def content(self, name: str, mark: object) -> None:
        """Note the mark of a picture, which is equal for equal pictures: no camera takes two of the same."""
        repeats, seconds = self._stillness[name].seen(mark, time.monotonic())
        if repeats:
            self._synchronizer.counters[name][SyncEvent.UNCHANGED] += 1
        if repeats >= STILL_PICTURES and seconds >= STILL_SECONDS:
            self._alarm(name, 'still', Level.WARN, f'the same picture came again and again for {STILL_SECONDS:g} s: '
                        'is the camera frozen?')

    def ready(self, seconds: float) -> None:
        """Note how long after the arrival of its last picture a frame was ready."""
        self._ready.append(seconds)

    def frame(self, number: int, age_s: float, joints: JointSnapshot) -> None:
        """Note a frame that was published; its age is node clock minus stamp."""
        self._arrivals[FRAMES].add(time.monotonic())
        if age_s > OLD_SECONDS:
            self._alarm(FRAMES, 'old', Level.WARN, f'stamps are {age_s:.0f} s behind the node clock, nothing will act '
                        'on them: synchronise the clocks; play recordings with a clock and use_sim_time, or restamped')
        self._number = number
        self._joints = joints

    def _alarm(self, name: str, reason: str, level: Level, text: str, lasts_s: float = EVENT_SECONDS,
               quiet: bool = False) -> None:
        title = f'{self._inputs[name].title} ({self._inputs[name].place})' if name in self._inputs else name
        text = shown(text, LONGEST)
        if not self._alarms.raise_alarm(name, reason, level, f'{title}: {text}', time.monotonic(), lasts_s, quiet):
            return
        if level is Level.ERROR:  # rclpy wants a line of code of its own for each severity
            self._node.get_logger().error(f'{title}: {text}')
        elif level is Level.WARN:
            self._node.get_logger().warning(f'{title}: {text}')
        else:
            self._node.get_logger().info(f'{title}: {text}')

    def _report(self) -> None:
        now_s = time.monotonic()
        absent, told = self._check_arrivals(now_s)
        for name in self._inputs:
            self._check_counters(name)
        if JOINTS in self._inputs:
            self._check_joints()
        self._check_frames(now_s, absent, told)
        for name, reason in self._alarms.expire(now_s):
            title = f'{self._inputs[name].title} ({self._inputs[name].place})' if name in self._inputs else name
            self._node.get_logger().info(f'{title}: recovered from {reason}')
        statuses = [self._status(name, now_s) for name in (*self._inputs, FRAMES)]
        message = DiagnosticArray(status=[*statuses, self._qos()])
        message.header.stamp = self._node.get_clock().now().to_msg()
        self._publisher.publish(message)

    def _check_arrivals(self, now_s: float) -> tuple[dict[str, Absent], bool]:
        """Return the inputs from which nothing comes, and whether the log names them one by one."""
        absent = {}
        for name, item in self._inputs.items():
            if found := find_absence(self._node, item, self._arrivals[name], now_s, self._timeout_s):
                absent[name] = found
        together = common_absence(self._inputs, absent)
        # The log waits for the next report: until then other inputs may follow, or the publishers of these may go.
        new = [name for name, found in absent.items() if not self._alarms.holds(name, found.kind.value)]
        for name, found in absent.items():
            self._withdraw_others(name, found.kind)
            self._alarm(name, found.kind.value, found.level, found.text, STATE_SECONDS,
                        bool(together) or name in new)
        if together:
            kind, level, text = together
            self._withdraw_others(INPUTS, kind)
            self._alarm(INPUTS, kind.value, level, text, STATE_SECONDS, bool(new))
        return absent, not together and not new

    def _withdraw_others(self, name: str, absence: Absence) -> None:
        """Forget other absences of an input: it has not recovered from them."""
        for other in Absence:
            if other is not absence:
                self._alarms.withdraw(name, other.value)

    def _check_counters(self, name: str) -> None:
        """Raise alarms for what was counted since the last report."""
        unusable = self._synchronizer.counters[name][SyncEvent.UNUSABLE]
        if unusable > self._counted.setdefault(name, Counter())[SyncEvent.UNUSABLE]:
            self._alarm(name, 'unusable', Level.WARN, self._synchronizer.last_fault[name])
        self._counted[name][SyncEvent.UNUSABLE] = unusable

    def _check_joints(self) -> None:
        merger = self._synchronizer.joints
        for fault, text in JOINT_TEXTS.items():
            if merger.counters[fault] > self._counted[JOINTS][fault]:
                self._alarm(JOINTS, fault.value, Level.WARN, text)
            self._counted[JOINTS][fault] = merger.counters[fault]
        if merger.not_finite:
            self._alarm(JOINTS, 'not_finite', Level.ERROR,
                        f'position of {", ".join(sorted(merger.not_finite))} is not a finite number and not used',
                        STATE_SECONDS)
        if self._arrivals[JOINTS].never or self._arrivals[JOINTS].age(time.monotonic()) > self._timeout_s:
            return
        joints = self._joints or merger.newest()
        if joints.missing:
            shown = ', '.join(joints.missing[:8]) + (', ...' if len(joints.missing) > 8 else '')
            # A model may do without some joints; the inference node knows.
            level = Level.ERROR if self._synchronizer.options.require_joints else Level.WARN
            self._alarm(JOINTS, 'missing', level,
                        f'no fresh position of {len(joints.missing)} of {len(joints.missing) + len(joints.names)} '
                        f'joints ({shown}): check their driver, and that joint states and pictures share a clock',
                        STATE_SECONDS)

    def _check_frames(self, now_s: float, absent: Mapping[str, Absent], told: bool) -> None:
        """Say why no frames come; quietly if that is what the log says about inputs already, or will soon."""
        age, options = self._arrivals[FRAMES].age(now_s), self._synchronizer.options
        usual = 2.0 / options.rate_hz if options.rate_hz else 0.0
        if age <= max(self._timeout_s, usual, absence.DISCOVERY_SECONDS if self._arrivals[FRAMES].never else 0.0):
            return
        late = [name for name, item in self._inputs.items() if self._arrivals[name].age(now_s) > self._timeout_s
                and (options.require_joints if name == JOINTS else item.required)]
        gap_s = self._synchronizer.stamp_gap_ns() / 1e9
        if self._clock_watch.waits_for_clock:
            why = NO_CLOCK
        elif late:
            why = f'waiting for {", ".join(self._inputs[name].title for name in late)}'
        elif gap_s > options.slop_ns / 1e9:
            why = (f'stamps of the cameras are {gap_s:.3f} s apart, more than the slop of {options.slop_ns / 1e9:g} s: '
                   'synchronise their clocks, raise the parameter slop, or queue if one lags, or set stamps to receive')
        else:
            why = 'see the inputs'
        quiet = bool(late) and not told
        if late and all(name in absent and absent[name].kind is Absence.NOT_BEGUN for name in late):
            # Nothing is wrong yet: what publishes them may wait for something itself.
            self._alarm(FRAMES, 'not_begun', Level.WARN, f'no frame yet: {why}', STATE_SECONDS, quiet)
        else:
            self._alarm(FRAMES, 'none', Level.ERROR, f'no frame for {age:.1f} s: {why}', STATE_SECONDS, quiet)
        self._joints = None

    def _qos(self) -> DiagnosticStatus:
        mismatches = self._qos_watch.check()
        return DiagnosticStatus(level=bytes([Level.ERROR if mismatches else Level.OK]),
                                name=f'{self._name}: qos',
                                message='; '.join(mismatches) or 'matches all other nodes')

    def _status(self, name: str, now_s: float) -> DiagnosticStatus:
        level, text = self._alarms.summary(name)
        arrivals = self._arrivals[name]
        values = {'age_s': f'{arrivals.age(now_s):.3f}', 'rate_hz': f'{arrivals.rate(now_s):.2f}'}
        title, place = FRAMES, self._node.resolve_topic_name(FRAMES)
        if name == FRAMES:
            values['frame_number'] = self._number
            if self._ready:
                values['ready_ms'] = f'{statistics.median(self._ready) * 1e3:.2f}'
                self._ready.clear()
        else:
            title, place = self._inputs[name].title, self._inputs[name].place
            counters = [self._synchronizer.counters[name]]
            counters.append(self._synchronizer.joints.counters if name == JOINTS else self._synchronizer.faults[name])
            values.update({key.value: count for counter in counters for key, count in sorted(
                counter.items(), key=lambda entry: entry[0].value) if count})
        if name == JOINTS and self._synchronizer.joints.unknown:
            values['ignored_joints'] = shown(', '.join(sorted(self._synchronizer.joints.unknown)), LONGEST)
        return DiagnosticStatus(
            level=bytes([level]), name=f'{self._name}: {title}', message=text, hardware_id=place,
            values=[KeyValue(key=key, value=str(value)) for key, value in values.items()])
