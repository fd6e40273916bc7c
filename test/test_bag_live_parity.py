"""One ingest path: a recording live over DDS in simulated time, and offline, gives the same for the same frames."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from small_policy import SIZES, small_config

from oxygen_ros.cli import main
from oxygen_ros.replay.bag import Bag
from oxygen_ros.replay.message_types import reader_of

BAG = Path(__file__).parent / 'data' / 'bags' / 'g1_two_cameras'
CAMERAS = ('/camera/head/image_raw/compressed', '/camera/front/image_raw/compressed')
SHARED = {'speech.max_tokens': 8, 'memory.max_tokens': 6, 'speech.temperature': 0.0, 'memory.temperature': 0.0,
          'text_frame_age': 0.0, 'max_frame_age': 5.0, 'seed': 3}
SECOND = 1_000_000_000
# The inference node, with every chunk of the model written to a file: the node itself publishes them blended only.
LIVE = '''
import json, sys
from oxygen_ros.tasks.action import ActionTask
file, whole = open(sys.argv.pop(1), "w", buffering=1), ActionTask.joint_chunk
def joint_chunk(self, chunk):
    made = whole(self, chunk)
    print(json.dumps([made.frame_number, made.stamp_ns, made.positions.tolist()]), file=file)
    return made
ActionTask.joint_chunk = joint_chunk
from oxygen_ros.cli import main
sys.exit(main(["inference", *sys.argv[1:]]))
'''


def settings(values):
    return [word for name, value in values.items()
            for word in ('-p', f'{name}:={str(value).lower() if isinstance(value, bool) else value}')]


def words_of(pieces):
    """Return (task, stamp of the frame) -> text of texts that ended by themselves."""
    texts = {}
    for piece in pieces:
        text = texts.setdefault(piece.request_id, ['', None])
        text[0] += piece.delta
        if piece.finish_reason in (1, 2, 9):
            text[1] = piece.task, piece.header.stamp.sec * SECOND + piece.header.stamp.nanosec
    return {key: text for text, key in texts.values() if key}


@pytest.fixture
def model_file(tmp_path):
    path = tmp_path / 'small.yaml'
    path.write_text(yaml.safe_dump(small_config(**{**SIZES, 'action_dim': 32, 'prompt_tokens': 60})))
    return str(path)


def live(graph, folder, model_file, rate):
    """Play the recording slowly; return chunks by (frame, stamp), texts, and notes by (stamp, text)."""
    from oxygen_ros.msg import MemoryEntry, TextChunk
    speech, memory = graph.listen(TextChunk, 'speech', 1000), graph.listen(MemoryEntry, 'memory', 100)
    file = folder / 'chunks.json'
    inference = subprocess.Popen([sys.executable, '-c', LIVE, str(file), '--use-sim-time', *settings({
        **SHARED, 'model': model_file, 'autostart': True, 'threads': 1, 'memory.path': folder / 'live.db',
        'memory.rate': 1.0})], stderr=subprocess.PIPE, text=True)
    graph._processes.append(inference)
    # Lossless, so that the frames are the same.
    reliable = {f'qos_overrides.{topic}.{{}}.reliability': 'reliable' for topic in CAMERAS}
    perception = graph.start('perception', '--use-sim-time', *settings({
        'image_height': 56, 'image_width': 56, **{name.format('subscription'): value for name, value in
                                                   reliable.items()}}))
    replay = graph.start('replay', str(BAG), '--clock', '200', '--rate', rate, '--wait-for-subscribers', '150',
                         '--topics', '/joint_states', *CAMERAS, *settings({
                             'wait_for_node': 'inference',
                             **{name.format('publisher'): value for name, value in reliable.items()}}))
    assert graph.spin_until(lambda: replay.poll() is not None, 250), inference.poll()
    graph.spin_for(1.0)  # what is under way
    for process in (perception, inference):
        graph.stop(process)
    chunks = {(number, stamp): np.array(rows) for number, stamp, rows in map(json.loads, file.read_text().splitlines())}
    notes = {(entry.first_seen.sec * SECOND + entry.first_seen.nanosec, entry.text) for entry in memory}
    return chunks, words_of(speech), notes


def offline(folder, model_file):
    """Take every frame: actions and texts at high rates, work takes no time."""
    assert main(['offline', str(BAG), '-o', str(folder / 'out'), '--model', model_file, '--no-picture', '--threads',
                 '1', '--remap', '/instruction:=/left_out', '--action-rate', '25', '--speech-rate', '20',
                 '--memory-rate', '20', *settings({**SHARED, 'image_height': 56, 'image_width': 56})]) == 0
    chunks, pieces, made = {}, [], 0
    report = json.loads((folder / 'out' / 'report.json').read_text())
    with Bag(folder / 'out' / 'bag') as bag:
        read = {topic.name: reader_of(topic) for topic in bag.topics}
        for message in bag.messages(['/chunks', '/speech']):
            content = read[message.topic](message.data)
            if message.topic == '/speech':
                pieces.append(content)
                continue
            stamp = content.header.stamp.sec * SECOND + content.header.stamp.nanosec
            number = report['actions']['of_frames'][made]
            chunks[number, stamp] = np.array([point.positions for point in content.points])
            made += 1
    notes = {(text['stamp_ns'], text['text'].strip()) for text in report['texts']['all'] if text['task'] == 'memory'}
    return chunks, words_of(pieces), notes


@pytest.mark.timeout(800)  # mostly for starting on a busy machine
def test_same_recording_live_and_offline_gives_the_same_for_the_same_frames(ros_graph, tmp_path, model_file):
    offline_chunks, offline_words, offline_notes = offline(tmp_path, model_file)
    # A busy machine makes one frame of two. All that follow have other numbers, and with them other noise.
    for rate in ('0.5', '0.2', '0.1'):
        live_chunks, live_words, live_notes = live(ros_graph, tmp_path, model_file, rate)
        chunks = live_chunks.keys() & offline_chunks.keys()
        words = live_words.keys() & offline_words.keys()
        if len(chunks) >= 4 and len(words) >= 3 and live_notes:
            break
    assert len(chunks) >= 4 and len(words) >= 3 and live_notes
    for key in chunks:
        np.testing.assert_allclose(live_chunks[key], offline_chunks[key], rtol=0, atol=1e-6, err_msg=f'frame {key}')
    assert {key: live_words[key] for key in words} == {key: offline_words[key] for key in words}
    assert live_notes <= offline_notes
    # Or the comparison would mean nothing:
    assert not np.allclose(live_chunks[min(chunks)], live_chunks[max(chunks)], atol=1e-3)
