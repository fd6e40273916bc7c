"""Summary: figures of a demo run, what did not happen, and the table that shows them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text as Styled

from oxygen_ros.demo.cycles import Trace
from oxygen_ros.demo.record import Question, Record, rate
from oxygen_ros.demo.verdicts import verdict_rows
from oxygen_ros.demo.view import MEBIBYTE, RANDOM_WEIGHTS, VERDICT_STYLES, answer_so_far, cut

ENOUGH = 0.98  # share of the set action rate that is to be achieved
SHOWN_CHARACTERS = 90  # of an answer, in the table
ENDED_ITSELF = ('stop', 'length')
SILENCE = 5.0  # s without a chunk at the end that a busy machine does not explain
ERROR_LEVEL = 2  # of diagnostic_msgs/DiagnosticStatus


@dataclass(frozen=True)
class Measured:
    """
    A finished run.

    :param end: when watching ended. :param trace: empty if there is no trace file.
    :param speed: of the time of the nodes; their rates are per second of that.
    :param stopped: the robot was told to stop in between, so that no actions came.
    """

    record: Record
    trace: Trace
    end: float
    speed: float = 1.0
    stopped: bool = False

    def rate(self, times: list[float]) -> float:
        """Return events per second of the nodes' time."""
        return rate(times, self.end) / self.speed


def summarise(measured: Measured, setting: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return the figures for summary.json. Names say the unit; what was not measured is null.

    :param setting: what was run; comes first.
    """
    record, trace, status = measured.record, measured.trace, measured.record.status
    random = bool(status.random_weights)
    lateness = 1e3 * np.array([cycle.lateness for cycle in trace.cycles])
    p50, p99, most = np.quantile(lateness, (0.5, 0.99, 1.0)) if len(lateness) else (None, None, None)
    memory = record.memory
    return {
        **setting,
        'model': status.model,
        'weights': status.weights,
        'random_weights': random,
        **({'note': RANDOM_WEIGHTS} if random else {}),
        'mode': status.mode,
        'measured_seconds': _round(measured.end - record.chunks[0]),
        'first_chunk_after_seconds': _round(record.chunks[0] - record.started),
        'action_rate_set_hz': _round(status.action_rate_set),
        'action_rate_achieved_hz': _round(measured.rate(record.chunks)),
        'cycles': len(record.chunks),
        'largest_gap_between_chunks_ms': _round(1e3 * np.max(np.diff(record.chunks), initial=0.0)),
        'deadline_misses': max(0, status.deadline_misses - trace.skipped),
        'deadlines_without_frame': trace.skipped,  # mostly while the nodes start
        'lateness_p50_ms': _round(p50),
        'lateness_p99_ms': _round(p99),
        'lateness_max_ms': _round(most),
        # The engine's own count, against its plan. The other modes let texts run to their end and plan nothing.
        'late_decodes': status.late_decodes if status.mode == 'continuous_batching' else None,
        'decodes_past_deadline': sum(cycle.decoded_past_deadline for cycle in trace.cycles),
        'cycle_median_ms': _round(1e3 * np.median([cycle.published - cycle.begin for cycle in trace.cycles])
                                  if trace.cycles else None),
        'stage_median_ms': {stage: _round(1e3 * median) for stage, median in trace.medians().items()},
        'tokens_per_second': _round(_tokens_per_second(record)),
        'command_rate_achieved_hz': _round(measured.rate(record.commands)),
        'texts_finished': status.texts_finished,
        'texts_unfinished': status.texts_unfinished,
        'memory_entries': len(memory.texts) if memory and memory.success else None,
        'memory_messages': record.note_messages,
        'notes_dropped': status.notes_dropped,
        'stale_frames': status.stale_frames,
        'rejected_chunks': status.rejected_chunks,
        'action_failures': status.action_failures,
        'frames_received': status.frames_received,
        'kv_bytes_peak': status.kv_bytes_peak,
        'kv_bytes_allocated': status.kv_bytes_allocated,
        'questions': [_question(record, question) for question in record.questions],
        'instructions': [{'instruction': each.instruction, 'accepted': each.accepted} for each in record.instructions],
        'diagnostics': {name: {'level': level, 'message': message}
                        for name, (level, message) in sorted(record.diagnostics.items())},
        'cpus': os.cpu_count(),
        'load_average_1min': _round(os.getloadavg()[0]),
        'warnings': warnings(measured),
    }


def warnings(measured: Measured) -> list[str]:
    """Return what was slower than it should be, one line each."""
    record, status = measured.record, measured.record.status
    lines = []
    achieved = measured.rate(record.chunks)
    if achieved < ENOUGH * status.action_rate_set and not measured.stopped:
        lines.append(f'the achieved action rate {achieved:.2f} Hz is below {ENOUGH:.0%} of the set '
                     f'{status.action_rate_set:.2f} Hz')
    if late := sum(cycle.decoded_past_deadline for cycle in measured.trace.cycles):
        lines.append(f'in {late} cycles texts were decoded past the deadline by more than one decode step')
    if not record.note_messages:
        lines.append('no memory note was published: other texts took all the time')
    lines += filter(None, (shortcoming(record, question) for question in record.questions))
    lines += [f'{name}: {message}' for name, (level, message) in sorted(record.diagnostics.items())
              if level >= ERROR_LEVEL]
    return lines


def failures(record: Record, end: float) -> list[str]:
    """Return what did not happen, one line each. The run has published chunks; watching ended at `end`."""
    lines = outages(record, end)
    if record.status is None:
        return lines
    cancelled = [question.cancelled is not None for question in record.questions if question.cancel]
    if cancelled and not any(cancelled):
        lines.append('no question could be cancelled')
    answers = [record.answer_of(question) for question in record.questions if not question.cancel]
    if answers and not any(answer and answer.tokens for answer in answers):
        lines += ['no question was answered', *filter(None, (shortcoming(record, each) for each in record.questions))]
    for each in record.instructions:
        if not each.accepted:
            why = 'got no answer' if each.accepted is None else f'was refused: {each.message}'
            lines.append(f'the instruction {each.instruction!r} {why}')
    return lines


def outages(record: Record, end: float) -> list[str]:
    """Return what the nodes did not do on their own, one line each."""
    if record.status is None:
        return ['no status came from the inference node']
    lines = []
    if end - record.chunks[-1] > SILENCE:
        lines.append(f'no action chunk came in the last {end - record.chunks[-1]:.1f} s (see inference.log)')
    if not record.commands:
        lines.append('no joint command was published')
    if not any(text.task == 'speech' and text.finish in ENDED_ITSELF for text in record.texts.values()):
        lines.append('no narration was finished')
    if not record.note_messages and record.status.mode == 'continuous_batching':  # other modes leave notes no time
        lines.append('no memory note was published')
    if record.memory is None:
        lines.append('the service query_memory did not answer')
    elif not record.memory.success:
        lines.append(f'the memory cannot be read: {record.memory.message}')
    return lines


def table_of(summary: Mapping[str, Any]) -> Table:
    """Return the figures that people read first. All of them are in summary.json."""
    table = Table(title='what the demo measured', title_justify='left', show_header=False)
    table.add_column(style='dim')
    table.add_column()

    def row(name: str, text: str) -> None:
        table.add_row(name, Styled(text))

    row('model', f'{summary["model"]} (weights: {summary["weights"]}), mode {summary["mode"]}')
    if summary['random_weights']:
        table.add_row('', Styled(RANDOM_WEIGHTS, style='bold red'))
    for name, text, verdict in verdict_rows(summary) if 'told' in summary else ():
        table.add_row(name, Styled(f'{text} {verdict.mark}', style=VERDICT_STYLES[verdict]))
    row('first action chunk', f'{summary["first_chunk_after_seconds"]:.1f} s after the start of the nodes')
    row('action rate', f'{summary["action_rate_achieved_hz"]:.3f} Hz achieved, {summary["action_rate_set_hz"]:.3f} Hz '
                       f'set ({summary["cycles"]} chunks in {summary["measured_seconds"]:.1f} s)')
    without = summary['deadlines_without_frame']
    row('deadlines', f'{summary["deadline_misses"]} missed, {without} without a frame to act on')
    late = summary['late_decodes']
    row('decoding', f'{summary["decodes_past_deadline"]} times past a deadline by more than one step'
                    + (f', {late} times past the planned begin of an action' if late is not None else ''))
    if summary['lateness_p50_ms'] is not None:
        row('lateness', f'p50 {summary["lateness_p50_ms"]:+.1f} ms, p99 {summary["lateness_p99_ms"]:+.1f} ms, '
                        f'max {summary["lateness_max_ms"]:+.1f} ms (negative: early)')
    row('stages, median', ', '.join(f'{stage} {ms:.1f} ms' for stage, ms in summary['stage_median_ms'].items()))
    row('text', f'{_shown(summary["tokens_per_second"], ".1f")} tokens/s, {summary["texts_finished"]} texts finished, '
                f'{summary["texts_unfinished"]} not')
    row('joint commands', f'{summary["command_rate_achieved_hz"]:.1f} Hz')
    row('memory', f'{_shown(summary["memory_entries"])} entries, {summary["notes_dropped"]} notes dropped')
    row('KV cache', f'{summary["kv_bytes_peak"] / MEBIBYTE:.1f} MiB at most, '
                    f'{summary["kv_bytes_allocated"] / MEBIBYTE:.1f} MiB allocated')
    answer = 'answer, random words' if summary['random_weights'] else 'answer'
    for question in summary['questions'] if 'told' not in summary else ():
        first = question['first_token_ms']
        row('question', question['question'] + (f' (first token after {first:.0f} ms)' if first is not None else ''))
        row(answer, cut(question['answer'], SHOWN_CHARACTERS))
    for warning in summary['warnings']:
        table.add_row(Styled('warning', style='yellow'), Styled(warning, style='yellow'))
    return table


def _question(record: Record, question: Question) -> dict[str, Any]:
    text = record.answer_of(question)
    return {
        'question': question.question, 'accepted': question.accepted, 'cancelled': bool(question.cancelled),
        'answer': answer_so_far(record, question), 'finish': text.finish if text else None,
        'tokens': text.tokens if text else None, 'frame_number': text.frame_number if text else None,
        'first_token_ms': _round(1e3 * text.first_token) if text and text.first_token is not None else None,
        'first_token_seen_ms': (_round(1e3 * (text.first_seen - question.asked))
                                if text and text.first_seen is not None else None)}


def shortcoming(record: Record, question: Question) -> str:
    """Return what is missing in the answer to a question, in one line, or an empty string."""
    name = f'the question {question.question!r}'
    text = record.answer_of(question)
    if question.accepted is False:
        return f'{name} was refused: {question.message}'
    if question.cancel:
        return '' if question.cancelled is not None else f'{name} was not cancelled'
    if question.accepted is None or text is None or not text.finish:
        return f'{name} was not answered in time'
    return '' if text.finish in ENDED_ITSELF else f'the answer to {question.question!r} ended early: {text.finish}'


def _tokens_per_second(record: Record) -> float | None:
    """Tokens per second between the first and the last status of the measured time."""
    span = record.status_time - record.first_status_time
    if record.first_status is None or span <= 0:
        return None
    return (record.status.tokens - record.first_status.tokens) / span


def _round(value: float | None) -> float | None:
    return None if value is None else round(float(value), 3)


def _shown(value: float | None, form: str = '') -> str:
    return 'unknown' if value is None else format(value, form)
