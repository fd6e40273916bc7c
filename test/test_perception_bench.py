"""The benchmark of the perception node runs and tells its figures."""

import json
import math
import subprocess
import sys


def test_benchmark_prints_what_it_measured(tmp_path):
    done = subprocess.run(
        [sys.executable, '-m', 'oxygen_ros', 'bench-perception', '--seconds', '1', '--size', '64', '48',
         '--joint-rate', '50', '--json', str(tmp_path / 'figures.json')], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / 'figures.json').read_text())
    assert all(math.isfinite(figure) and figure >= 0 for figure in figures.values())
    assert figures['frames_per_second'] > 0 and figures['pictures_per_second'] > figures['frames_per_second']
    assert f'{figures["cores"]:.3f} cores' in done.stdout and '2 JPEG cameras of 64x48' in done.stdout
