"""The trace file: readable whole, cut off, and when the disk is full."""

import json
import logging

from oxygen_ros.engine.trace import Tracer, read_trace


def test_events_come_back_in_microseconds(tmp_path):
    path = tmp_path / 'trace.json'
    tracer = Tracer(path)
    tracer.span('decode', 1.0, 1.5, branches=3)
    tracer.mark('deadline', 2.0)
    tracer.close()
    tracer.close()
    span, mark = read_trace(path)
    assert (span['ph'], span['ts'], span['dur'], span['args']) == ('X', 1e6, 0.5e6, {'branches': 3})
    assert (mark['ph'], mark['name'], mark['ts']) == ('i', 'deadline', 2e6)


def test_file_of_a_killed_process_is_read_up_to_the_cut(tmp_path):
    path = tmp_path / 'trace.json'
    tracer = Tracer(path)
    for i in range(3):
        tracer.span('decode', i, i + 1)
    tracer.close()
    whole = path.read_text()
    path.write_text(whole[:-20])
    assert len(read_trace(path)) == 2
    # Viewers take it with the end of the array missing: adding that must make it valid JSON.
    assert len(json.loads(whole.rstrip().rstrip(',') + ']')) == 3


def test_file_is_bounded(tmp_path):
    path = tmp_path / 'trace.json'
    tracer = Tracer(path, max_events=2)
    for i in range(5):
        tracer.mark('deadline', i)
    assert len(read_trace(path)) == 2


def test_no_path_records_nothing():
    tracer = Tracer()
    tracer.span('decode', 0.0, 1.0)
    tracer.mark('deadline', 0.0)
    tracer.close()


def test_full_disk_ends_the_trace_with_a_warning_and_nothing_else(tmp_path, caplog):
    class FullDisk:
        def write(self, text):
            raise OSError(28, 'No space left on device')

        def close(self):
            raise OSError(28, 'No space left on device')

    for use in (lambda tracer: tracer.span('decode', 0.0, 1.0), Tracer.close):
        tracer = Tracer(tmp_path / 'trace.json')
        tracer._file.close()
        tracer._file = FullDisk()
        with caplog.at_level(logging.WARNING):
            use(tracer)
        tracer.span('decode', 0.0, 1.0)
        assert 'No space left' in caplog.text
        caplog.clear()
