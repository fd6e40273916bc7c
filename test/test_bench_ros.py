"""The benchmark of the nodes: how a chunk is followed through a trace, and one run over DDS."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from oxygen_ros.bench.ros import read_spans, report, ways_of
from oxygen_ros.engine.trace import Tracer


class Record:
    sent = {1000: 10.0, 2000: 10.5, 3000: 11.0}
    frames = [(1, 1000, 10.02), (2, 2000, 10.52), (3, 3000, 11.01)]
    trajectories = [10.35, 10.84, 11.4]


def spans(tmp_path, *chunks):
    tracer = Tracer(tmp_path / 'trace.json')
    for frame, prefill, denoise in chunks:
        tracer.span('prefill', *prefill, frame=frame)
        tracer.mark('deadline', denoise[1])
        tracer.span('decode', prefill[0] - 0.01, prefill[0], branches=2)
        tracer.span('denoise', *denoise, frame=frame)
    tracer.close()
    return read_spans(tmp_path / 'trace.json')


def test_way_of_a_chunk_is_divided_into_its_parts(tmp_path):
    way, = ways_of(Record, spans(tmp_path, (1, (10.1, 10.2), (10.21, 10.31))), 10.0, 12.0)
    parts = (way.to_frame, way.waiting, way.model, way.between, way.to_command)
    assert parts == pytest.approx((0.02, 0.08, 0.2, 0.01, 0.04))
    assert way.total == pytest.approx(0.35) and way.suite == pytest.approx(0.07)


def test_chunks_that_cannot_be_followed_are_left_out(tmp_path):
    chunks = spans(tmp_path, (1, (10.1, 10.2), (10.2, 10.3)), (2, (10.6, 10.7), (10.7, 10.8)),
                   (7, (10.8, 10.81), (10.81, 10.82)),      # a frame that was not seen
                   (3, (11.1, 11.2), (11.2, 11.3)), (3, (11.3, 11.31), (11.31, 11.32)))
    ways = ways_of(Record, chunks, 10.0, 12.0)
    # Frame 2's trajectory came after the next chunk was ready: whose it is cannot be told.
    assert [round(way.total, 3) for way in ways] == [0.35, 0.4]
    assert ways_of(Record, chunks, 12.0, 13.0) == []


def test_nodes_are_measured_over_dds(ros_domain, tmp_path):
    file = tmp_path / 'result.json'
    run = subprocess.run([sys.executable, '-m', 'oxygen_ros', 'bench', 'ros', '--seconds', '4', '--action-rate', '1',
                          '--camera-rate', '4', '--speech-rate', '0.5', '--size', '120', '160', '--json', str(file)],
                         capture_output=True, text=True, timeout=250, env={**os.environ, 'OMP_NUM_THREADS': '1'})
    assert run.returncode == 0, run.stderr
    result = json.loads(file.read_text())
    assert result['schema'] == 'oxygen_ros.bench_ros/1' and result['chunks'] >= 1
    ways = result['ways']
    assert ways['total']['p50'] > ways['suite']['p50'] > 0 and ways['model']['p50'] > 0
    assert set(result['cpu_cores']) == {'perception', 'inference'}
    assert 'pictures published -> trajectory received' in run.stdout and report(result) in run.stdout
