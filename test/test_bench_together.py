"""Benchmarks of memory and of all tasks together run, and say what they measured."""

import json

import yaml
from small_policy import SIZES, small_config

from oxygen_ros.cli import main


def test_memory_benchmark_measures_every_kind_of_query(tmp_path, capsys):
    result = tmp_path / 'memory.json'
    assert main(['bench', 'memory', '--entries', '300', '--rounds', '3', '--json', str(result)]) in (0, 1)
    queries = json.loads(result.read_text())['queries']
    assert len(queries) == 11 and all(figures['cpu_p99_ms'] > 0 for figures in queries.values())
    assert '300 entries' in capsys.readouterr().out


def test_benchmark_of_all_tasks_counts_actions_with_and_without_the_rest(tmp_path, capsys):
    model = tmp_path / 'small.yaml'
    model.write_text(yaml.safe_dump(small_config(**{**SIZES, 'action_dim': 32, 'prompt_tokens': 60})))
    assert main(['bench', 'together', '--model', str(model), '--seconds', '0.8', '--rounds', '1']) == 0
    quiet, busy, *rest = capsys.readouterr().out.splitlines()
    assert quiet.startswith('quiet') and busy.startswith('busy') and 'of 4 frames' in busy
    assert any(line.startswith('answer') for line in rest)
