"""The report of an offline run. All of it follows from recording and settings: two equal runs give equal bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from oxygen_ros.models.interface import ModelSpec
from oxygen_ros.offline.inputs import OfflineInputs
from oxygen_ros.offline.outputs import Records, finish_counts, plain
from oxygen_ros.offline.virtual_time import StageCosts
from oxygen_ros.perception.sync_options import JOINTS
from oxygen_ros.replay.player import Player

ENTRY = ('entry_id', 'text', 'stamp_ns', 'frame_number', 'first_seen_ns', 'last_seen_ns', 'count', 'tf_frame')
NOTHING = 'the weights are random: actions and texts mean nothing, only counts and times do'


def build_report(player: Player, inputs: OfflineInputs, spec: ModelSpec, costs: StageCosts, records: Records,
                 settings: Mapping[str, Any], span_ns: tuple[int, int], skipped_ns: int) -> dict[str, Any]:
    """
    Return what came in and out as a dict for JSON.

    :param settings: parameters that differ from their defaults, by node.
    :param span_ns: first and last moment of virtual time. :param skipped_ns: of pauses in it that were skipped.
    """
    results = Counter(chunk.result for chunk in records.chunks)
    lateness = [(chunk.published_ns - chunk.deadline_ns) / 1e6 for chunk in records.chunks]
    return {
        'bag': str(player.bag.path),
        'model': {'name': spec.name, 'weights': spec.weights, 'random_weights': spec.random_weights},
        **({'warning': NOTHING} if spec.random_weights else {}),
        'settings': {node: dict(values) for node, values in settings.items()},
        'stage_costs_ms': plain(costs),
        'virtual_time': {'start_ns': span_ns[0], 'seconds': (span_ns[1] - span_ns[0]) / 1e9,
                         'pauses_skipped': skipped_ns / 1e9},
        'inputs': _inputs(player, inputs),
        'frames': {'made': len(records.frames), 'refused_by_inference': records.refused_frames},
        'actions': {
            'chunks': len(records.chunks), 'results': dict(sorted(results.items())),
            'skipped': dict(sorted(Counter(reason for _, reason in records.skipped).items())),
            'late': sum(value > 0 for value in lateness), 'most_late_ms': max(lateness, default=None),
            'of_frames': [chunk.frame_number for chunk in records.chunks]},
        'commands': _commands(records),
        'texts': {'ended': finish_counts(records), 'tokens': sum(text.tokens for text in records.texts.values()),
                  'all': [plain(text) for text in records.texts.values()]},
        'memory': [{name: getattr(entry, name) for name in ENTRY} for entry in records.memory],
        'instructions': [{'time_ns': time_ns, 'text': text} for time_ns, text in records.instructions],
        'missing': player.shortfalls,
        'notes': player.notes + player.bag.notes + inputs.notes}


def _inputs(player: Player, inputs: OfflineInputs) -> dict[str, Any]:
    synchronizer = inputs.synchronizer
    counters = {name: {event.value: number for event, number in sorted(counter.items(), key=lambda item: item[0].value)}
                for name, counter in synchronizer.counters.items()}
    for name, faults in synchronizer.faults.items():
        counters[name] |= {fault.value: number for fault, number in faults.items()}
    counters[JOINTS] |= {fault.value: number for fault, number in synchronizer.joints.counters.items() if number}
    return {
        'topics': [{'topic': topic.name, 'type': topic.type, 'promised': topic.promised,
                    'taken': player.delivered[topic.name, topic.type], 'damaged': inputs.damaged[topic.name]}
                   for topic in player.topics],
        'events': counters, 'faults': dict(synchronizer.last_fault)}


def _commands(records: Records) -> dict[str, Any]:
    if not records.command_times:
        return {'count': 0}
    positions = np.stack(records.command_positions)
    return {'count': len(positions), 'joints': {
        name: {'least': float(column.min()), 'most': float(column.max()), 'last': float(column[-1])}
        for name, column in zip(records.command_names, positions.T)}}
