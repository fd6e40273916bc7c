"""
Linters: ruff and mypy everywhere; those of ament where they are installed, as in a ROS distribution.

There is none of ament_copyright: the licence stands in LICENSE and package.xml, the files have no headers.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Choose a backend of matplotlib before they import it.
LATE_IMPORTS = {'bench/gpu_check.py', 'oxygen_ros/bench/plots.py', 'oxygen_ros/training/curves.py'}
# What the linters of ament leave out.
AMENT_FLAKE8_IGNORES = ('B902', 'C816', 'D100', 'D101', 'D102', 'D103', 'D104', 'D105', 'D106', 'D107', 'D203', 'D212',
                        'D404', 'I202')
AMENT_PEP257_IGNORES = tuple(rule for rule in AMENT_FLAKE8_IGNORES if rule.startswith('D'))
# Summaries of more than one line, and such as "Shape [n, m] of ...", which our docstrings have.
DOCSTRING_RULES_NOT_MET = ('D200', 'D205', 'D400', 'D401', 'D415')


def sources() -> list[str]:
    """Return the Python files that are ours, without tests and generated ones."""
    files = [*ROOT.glob('bench/*.py'), *ROOT.glob('doc/*.py'), *ROOT.glob('launch/*.py'),
             *ROOT.glob('oxygen_ros/**/*.py')]
    names = (path.relative_to(ROOT).as_posix() for path in files)
    return sorted(name for name in names if not name.startswith(('oxygen_ros/msg/', 'oxygen_ros/srv/')))


def passes(*words: str) -> None:
    run = subprocess.run([sys.executable, '-m', *words], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


def ament(name: str) -> str:
    """Return the module of an ament linter, or skip."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f'{name} is not installed')
    return f'{name}.main'


def test_ruff():
    passes('ruff', 'check', '--no-cache', '.')


def test_docstrings():
    """PEP 257 as ament_pep257 has it: ruff knows the same rules."""
    passes('ruff', 'check', '--no-cache', '--select', 'D', '--ignore',
           ','.join((*AMENT_PEP257_IGNORES, *DOCSTRING_RULES_NOT_MET)), *sources())


def test_flake8():
    """As ament_flake8 calls it, without its plugins."""
    if importlib.util.find_spec('flake8') is None:
        pytest.skip('flake8 is not installed; ruff checks most of its rules')
    passes('flake8', '--isolated', '--max-line-length', '120', '--extend-ignore', ','.join(AMENT_FLAKE8_IGNORES),
           *(name for name in sources() if name not in LATE_IMPORTS))


def test_mypy(tmp_path):
    passes('mypy', '--cache-dir', str(tmp_path))


def test_ament_flake8():
    module = ament('ament_flake8')
    passes(module, '--linelength', '120', *(name for name in sources() if name not in LATE_IMPORTS))


def test_ament_pep257():
    module = ament('ament_pep257')
    passes(module, '--add-ignore', *DOCSTRING_RULES_NOT_MET, '--', *sources())


def test_ament_xmllint():
    module = ament('ament_xmllint')
    if shutil.which('xmllint') is None:
        pytest.skip('xmllint is not installed')
    passes(module, 'package.xml', 'config/shm.xml', 'config/sros2/policy.xml')


def test_every_docstring_rule_that_is_named_is_one():
    assert all(re.fullmatch(r'D[24]\d\d', rule) for rule in DOCSTRING_RULES_NOT_MET)
    assert not set(DOCSTRING_RULES_NOT_MET) & set(AMENT_PEP257_IGNORES)
    assert LATE_IMPORTS <= set(sources())
