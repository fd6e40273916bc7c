"""A soak run tells what it did; what does not stay true is in its report and in its exit code."""

import json

from oxygen_ros.cli import main
from oxygen_ros.nodes.soak import Soak
from oxygen_ros.nodes.soak_faults import FAULTS
from oxygen_ros.soak.report import Footprint, SoakReport


def test_growth_is_found():
    report = SoakReport(0, 'tiny', begin=Footprint(10**9, 10, 20), end=Footprint(10**9 + 10**6, 10, 20))
    report.compare()
    assert not report.broken
    report.end = Footprint(2 * 10**9, 11, 21)
    report.compare()
    assert [text.split(' grew')[0] for text in report.broken] == ['memory', 'threads', 'handles']
    assert report.as_json()['memory_growth_bytes'] == 10**9


def test_short_run_with_faults_is_reported(ros_domain, tmp_path, capsys, monkeypatch):
    for name in set(FAULTS) - {'model_nan'}:
        monkeypatch.delitem(FAULTS, name)
    code = main(['soak', '--minutes', '0.05', '--seed', '3', '--output', str(tmp_path / 'report.json')])
    report = json.loads((tmp_path / 'report.json').read_text())
    assert json.loads(capsys.readouterr().out) == report
    assert (code, report['broken']) == (0, [])
    assert report['faults']['model_nan'] >= 1 and report['commands'] and report['chunks'] and report['frames']
    assert sum(report['questions'].values()) == 2 * report['questions']['asked']


def test_what_does_not_stay_true_ends_with_code_1(ros_domain, capsys, monkeypatch):
    def run(soak):
        soak.report.broken.append('a fault of the test')
        return soak.report

    monkeypatch.setattr(Soak, 'run', run)
    assert main(['soak']) == 1
    assert json.loads(capsys.readouterr().out)['broken'] == ['a fault of the test']
