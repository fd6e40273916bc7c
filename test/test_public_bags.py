"""
Recordings of other people run through replay and offline. They are not part of this repository: the variable
OXYGEN_ROS_BAGS leads to a folder of them (see doc/bags.md). The derived ones in test/data/bags always run.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest
import yaml
from public_bags import VARIABLE, offline_settings, public_recordings, recordings
from small_policy import SIZES, small_config

from oxygen_ros.cli import main
from oxygen_ros.errors import BagError
from oxygen_ros.replay.bag import Bag, shortfalls

DERIVED = recordings(Path(__file__).parent / 'data' / 'bags')
PATHS = [*DERIVED, *public_recordings()]


@pytest.fixture(scope='module')
def model_file(tmp_path_factory):
    path = tmp_path_factory.mktemp('models') / 'small.yaml'
    path.write_text(yaml.safe_dump(small_config(**{**SIZES, 'action_dim': 32, 'prompt_tokens': 60})))
    return str(path)


def readable(path):
    """Return whether a recording can be opened; that it cannot must be said in one line that names it."""
    try:
        Bag(path).close()
        return True
    except BagError as error:
        assert '\n' not in str(error) and path.name.partition('.')[0] in str(error)
        return False


def name_of(path):
    return '/'.join(path.parts[-3:])


def test_public_recordings_are_there():
    if not public_recordings():
        pytest.skip(f'{VARIABLE} names no folder of recordings: {os.environ.get(VARIABLE)!r}')


@pytest.mark.parametrize('path', PATHS, ids=name_of)
def test_every_promised_message_is_read(path):
    if not readable(path):
        return
    with Bag(path) as bag:
        counts = Counter((message.topic, message.type) for message in bag.messages())
        assert shortfalls(bag.topics, counts) == []
        assert sum(counts.values()) == bag.count


@pytest.mark.parametrize('path', PATHS, ids=name_of)
def test_replay_plays_what_can_be_played_and_names_the_rest(ros_domain, path, capfd):
    words = ['--start-offset', '0'] if path in DERIVED else ['--duration', '60']
    code = main(['replay', str(path), '--rate', '100', '--wait-for-subscribers', '0', '--json', *words])
    out, err = capfd.readouterr()
    assert 'Traceback' not in err
    if code == 2:  # one line says why
        assert not out and err.splitlines()[-1].startswith('error:')
        return
    report = json.loads(out)
    assert code == 0 and report['finished'] and report['differences'] == []
    assert all(topic['published'] <= topic['promised'] for topic in report['topics'])
    for name, reason in report['skipped'].items():
        assert f'{name} is not played: {reason}' in err


@pytest.mark.parametrize('path', PATHS, ids=name_of)
def test_offline_takes_its_pictures_or_says_what_is_missing(path, model_file, tmp_path, capsys):
    words = []
    if readable(path) and path not in DERIVED:
        with Bag(path) as bag:
            words = offline_settings(bag.topics)
    code = main(['offline', str(path), '-o', str(tmp_path / 'out'), '--model', model_file, '--no-picture',
                 '-p', 'image_height:=56', '-p', 'image_width:=56', *words])
    out, err = capsys.readouterr()
    if code == 2:
        assert err.startswith('error:') and err.count('\n') == 1 and not words
        return
    report = json.loads((tmp_path / 'out' / 'report.json').read_text())
    assert code == (0 if report['frames']['made'] else 1)
    assert report['frames']['made'] or path not in DERIVED
    assert report['missing'] == []
