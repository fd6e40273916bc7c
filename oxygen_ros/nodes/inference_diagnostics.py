"""What the inference node says on /diagnostics, and the log lines on edges that belong to it."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from std_msgs.msg import Header

from oxygen_ros import hardware
from oxygen_ros.engine.statistics import EngineStatus
from oxygen_ros.nodes.clock_watch import NO_CLOCK
from oxygen_ros.nodes.conversion import time_to_msg
from oxygen_ros.nodes.remote_text import shown
from oxygen_ros.nodes.steady_levels import SteadyLevels
from oxygen_ros.perception.health import Arrivals
from oxygen_ros.robot.chunk import CommandSource
from oxygen_ros.robot.chunk_buffer import PushResult

if TYPE_CHECKING:
    from oxygen_ros.nodes.inference import InferenceNode

START_SECONDS = 5.0  # after activation and after the first frame, in which rates and absences say nothing yet
LONGEST = 4000  # characters of a message
SLOW_SECONDS = 2.0  # that a call into the engine may last before it is mentioned

OK, WARN, ERROR = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR


class InferenceDiagnostics:
    """Collects faults as they happen and publishes the state once a second."""

    def __init__(self, node: InferenceNode) -> None:
        self._node = node
        self.memory_report = ''  # what became of its file, since it was opened
        self._publisher = node.create_publisher(DiagnosticArray, '/diagnostics', 10)
        self.begin()

    def begin(self) -> None:
        """Start a run: whatever was before says nothing about it."""
        self._began = time.monotonic()
        self._levels = SteadyLevels()
        self._arrivals = Arrivals(self._began)
        self._frame_time: float | None = None
        self._frame_age = 0.0
        self._frame_fault = self._memory_fault = ''
        self._ignored: Counter[str] = Counter()
        self._first_frame: float | None = None
        self._frames_refused = 0
        self._strange: dict[str, str] = {}  # joint -> what is strange about its position
        self.rejected = 0
        self._chunks: Counter[str] = Counter()
        self._source: CommandSource | None = None
        self._misses = self._rejected_before = 0
        self._action_fault = ''

    # -- events ------------------------------------------------------------------------------------------------------

    def frame_arrived(self, stamp_ns: int) -> None:
        """Note a good frame."""
        if self._frame_fault:
            self._node.get_logger().info('frames are good again')
            self._frame_fault = ''
        self._frame_time = time.monotonic()
        self._arrivals.add(self._frame_time)
        if self._first_frame is None:
            self._first_frame = self._frame_time
        self._frame_age = (self._node.get_clock().now().nanoseconds - stamp_ns) / 1e9

    def state_checked(self, problems: dict[str, str]) -> None:
        """Note what is strange about the joints of a frame; say so when a joint becomes strange."""
        for name in problems.keys() - self._strange.keys():
            self._node.get_logger().warning(f'joint {name!r} {problems[name]}')
        self._strange = problems

    def frame_refused(self, reason: str) -> None:
        """Note a frame that cannot be used."""
        self._frames_refused += 1
        reason = shown(reason, LONGEST)
        if not self._frame_fault:
            self._node.get_logger().warning(f'a frame cannot be used: {reason}')
        self._frame_fault = reason

    def chunk_rejected(self, reason: str) -> None:
        """Note a chunk that the safety check dropped."""
        self.rejected += 1
        if self.rejected == 1:
            self._node.get_logger().error(f'{reason}; further ones are counted in status and diagnostics')

    def action_failed(self, reason: str) -> None:
        """Note an action that the model could not make."""
        if not self._action_fault:
            self._node.get_logger().error(f'an action failed, the next one is tried: {reason}; further ones are '
                                          'counted in status and diagnostics')
        self._action_fault = reason

    def chunk_taken(self, result: PushResult | None) -> None:
        """Count what became of a chunk; None is one that came while stopped."""
        if self._action_fault:
            self._node.get_logger().info('actions work again')
            self._action_fault = ''
        self._chunks['stopped' if result is None else result.value] += 1

    def commanded(self, source: CommandSource) -> None:
        """Note whether a command comes from a chunk or holds; say so when that changes without a stop."""
        if source is not self._source and not self._node.session.commands.stopped:
            if source is CommandSource.HOLD:
                self._node.get_logger().warning('the chunks have run out: the robot holds')
            elif self._source is CommandSource.HOLD:
                self._node.get_logger().info('executing chunks again')
        self._source = source

    def memory_failed(self, reason: str) -> None:
        """Note that a memory entry could not be stored."""
        if not self._memory_fault:
            self._node.get_logger().error(reason)
        self._memory_fault = reason

    def memory_reported(self, text: str) -> None:
        """Note what became of the file of the memory."""
        self._node.get_logger().warning(text)
        self.memory_report = text

    def text_ignored(self, topic: str, why: str) -> None:
        """Note a text on a topic that cannot be used."""
        self._ignored[f'ignored_{topic}s'] += 1
        if self._ignored[f'ignored_{topic}s'] == 1:
            self._node.get_logger().warning(f'a message on {topic} is ignored, {why}; further ones are counted in '
                                            'diagnostics')

    def memory_worked(self) -> None:
        """Note that storing works."""
        if self._memory_fault:
            self._node.get_logger().info('memory works again')
            self._memory_fault = ''

    # -- publication -------------------------------------------------------------------------------------------------

    def publish(self, status: EngineStatus | None) -> None:
        """Publish one status per part; None means that the engine does not run."""
        node = self._node
        statuses = [self._state(), self._qos(), self._hardware()]
        if node.worker is not None:
            statuses.append(self._engine(status))
        if node.outputs.controller is not None:
            problem = node.outputs.controller.problem
            statuses.append(self._entry(problem and ERROR, 'controller', problem or 'gets the positions'))
        if node.active:
            statuses.append(self._frames())
            if status is not None:
                statuses += [self._actions(status), self._texts(status), self._cache(status)]
            statuses.append(self._memory())
        self._publisher.publish(DiagnosticArray(
            header=Header(stamp=time_to_msg(node.get_clock().now().nanoseconds)), status=statuses))

    def _state(self) -> DiagnosticStatus:
        node = self._node
        if node.clock_watch.waits_for_clock:
            return self._entry(ERROR, 'state', NO_CLOCK)
        if node.session is None:
            failed = node.watchdog.reason
            return self._entry(ERROR if failed else WARN, 'state', 'unconfigured: ' + (
                f'the engine failed, {failed}; configure the node again' if failed else 'no model is loaded'))
        spec = node.session.spec
        text = node.state_name
        level = OK
        if spec.random_weights:
            level, text = WARN, f'{text}; the weights are random, no output means anything'
        if not node.may_move:
            text += '; no commands are published'
        return self._entry(level, 'state', text, model=spec.name, weights=spec.weights, mode=node.values['mode'],
                           robot=node.session.action.robot.name, instruction=shown(node.instruction))

    def _qos(self) -> DiagnosticStatus:
        mismatches = self._node.qos_watch.check()
        return self._entry(mismatches and ERROR, 'qos', '; '.join(mismatches) or 'matches all other nodes')

    def _hardware(self) -> DiagnosticStatus:
        values = hardware.readings()
        wrong = hardware.problems(values)
        return self._entry(wrong and WARN, 'hardware', '; '.join(wrong) or 'is well',
                           **{name: f'{value:.4g}' if value < 1e4 else f'{value:.0f}'
                              for name, value in values.items()})

    def _engine(self, status: EngineStatus | None) -> DiagnosticStatus:
        """Say whether the worker gets on; this one is told also while it hangs."""
        worker, watchdog = self._node.worker, self._node.watchdog
        silence = worker.silence
        level, text = OK, 'gets on'
        if watchdog.reason:
            level, text = ERROR, watchdog.reason
        elif not worker.alive:
            level, text = ERROR, 'its thread has ended'
        elif silence > SLOW_SECONDS:
            level, text = ERROR if silence > watchdog.limit else WARN, f'no cycle ended for {silence:.1f} s'
        elif self._action_fault:
            level, text = WARN, f'an action failed: {self._action_fault}'
        failures = {} if status is None else {'action_failures': status.counters.action_failures}
        return self._steady(level, 'engine', text, silence_s=f'{silence:.2f}', limit_s=f'{watchdog.limit:g}',
                            **failures)

    def _starting(self) -> bool:
        return time.monotonic() - self._began < START_SECONDS

    def _frames(self) -> DiagnosticStatus:
        limit = self._node.values['max_frame_age']
        if self._frame_fault:
            return self._steady(ERROR, 'frames', self._frame_fault, refused=self._frames_refused)
        topic = self._node.resolve_topic_name('frames')
        if self._frame_time is None:
            text = f'no frame on {topic} since the start: is the perception node running?'
            return self._entry(OK if self._starting() else ERROR, 'frames', text)
        silent = time.monotonic() - self._frame_time
        if silent > max(1.0, limit):
            return self._steady(ERROR, 'frames', f'no frame on {topic} for {silent:.1f} s: look at the diagnostics of '
                                'the perception node', rate_hz='0.00', refused=self._frames_refused)
        wrong = abs(self._frame_age) > limit  # a frame from the future is not acted on either
        text = f'{self._frame_age * 1e3:.0f} ms old on arrival' + (f', max_frame_age is {limit:g} s' if wrong else '')
        if self._strange:
            text += '; ' + '; '.join(f'joint {name!r} {problem}' for name, problem in self._strange.items())
        return self._steady(
            WARN if wrong or self._strange else OK, 'frames', text, age_s=f'{self._frame_age:.3f}',
            rate_hz=f'{self._arrivals.rate(time.monotonic()):.2f}', refused=self._frames_refused)

    def _actions(self, status: EngineStatus) -> DiagnosticStatus:
        wanted = self._node.values['action.rate']
        new_misses, self._misses = status.counters.deadline_misses - self._misses, status.counters.deadline_misses
        new_rejected, self._rejected_before = self.rejected - self._rejected_before, self.rejected
        # The window goes back to the activation. No chunk can come before the first frame and one period more.
        running = 0.0 if self._first_frame is None else time.monotonic() - self._first_frame
        window = min(status.window, running - 2 / wanted) if wanted > 0 else 0.0
        starting = running < START_SECONDS or self._starting()
        slow = (not starting and self._node.state_name == 'active'
                and status.action_rate * status.window < 0.9 * wanted * window - 1)
        holds = self._source is CommandSource.HOLD
        level = WARN if slow or new_misses > 0 and not starting or new_rejected or holds and not starting else OK
        budget = f'{1e3 / wanted:.1f}' if wanted > 0 else 'none'
        rate = status.action_rate * status.window / window if window > 0 and not starting else status.action_rate
        text = f'{rate:.2f} of {wanted:.2f} chunks per second, {new_misses} new misses'
        text += f', {new_rejected} chunks rejected' if new_rejected else ''
        return self._steady(
            level, 'actions', text + (', the robot holds' if holds else ''), **self._chunks, budget_ms=budget,
            lateness_p99_ms=f'{status.lateness_p99 * 1e3:.1f}', cycle_ms=f'{status.cycle * 1e3:.1f}',
            deadline_misses=status.counters.deadline_misses, stale_frames=status.counters.stale_frames,
            rejected_chunks=self.rejected)

    def _texts(self, status: EngineStatus) -> DiagnosticStatus:
        starving = status.waiting > 0 and status.tokens_per_second == 0
        text = (f'{status.waiting} texts wait and none gets time: lower action.rate or the number of denoise steps'
                if starving else f'{status.tokens_per_second:.0f} tokens per second')
        if starving and self._frame_time is None:
            text = f'{status.waiting} texts wait for the first frame'
        return self._steady(
            WARN if starving and not self._starting() else OK, 'texts', text, running=status.running,
            waiting=status.waiting, finished=status.counters.texts_finished,
            unfinished=status.counters.texts_unfinished, notes_dropped=status.counters.notes_dropped, **self._ignored)

    def _cache(self, status: EngineStatus) -> DiagnosticStatus:
        text = f'{status.kv_bytes / 2**20:.1f} of {status.kv_bytes_allocated / 2**20:.1f} MiB'
        return self._entry(OK, 'kv_cache', text, used_bytes=status.kv_bytes, allocated_bytes=status.kv_bytes_allocated,
                           peak_bytes=status.kv_bytes_peak, budget_bytes=status.kv_bytes_budget,
                           frames=status.frames_resident, branches=status.running)

    def _memory(self) -> DiagnosticStatus:
        fault, report = self._memory_fault, self.memory_report
        return self._entry(fault and ERROR or report and WARN, 'memory', fault or report or 'notes are stored',
                           path=self._node.memory.path)

    def _steady(self, level: bytes, part: str, text: str, **values: object) -> DiagnosticStatus:
        held, text = self._levels.settle(part, level[0], text)
        return self._entry(bytes([held]), part, text, **values)

    def _entry(self, level: bytes | str, part: str, text: str, **values: object) -> DiagnosticStatus:
        name = self._node.get_fully_qualified_name().strip('/')
        return DiagnosticStatus(level=level or OK, name=f'{name}: {part}', message=shown(text, LONGEST),
                                hardware_id='oxygen_ros', values=[KeyValue(key=key, value=shown(str(value), LONGEST))
                                                                  for key, value in values.items()])
