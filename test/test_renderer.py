"""Pictures of the simulator: which OpenGL is used, and what is said when there is none."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import pytest

from oxygen_ros.errors import ConfigError
from oxygen_ros.simulation import renderer


@pytest.fixture
def working(monkeypatch):
    """Let only some backends work; returns the set of them."""
    backends: set[str] = set()
    monkeypatch.delenv('MUJOCO_GL', raising=False)
    monkeypatch.setattr(subprocess, 'run', lambda words, env, **_: SimpleNamespace(
        returncode=0 if env['MUJOCO_GL'] in backends else 1))
    return backends


def test_first_backend_that_works_is_taken_and_remembered(working, monkeypatch):
    working.add('osmesa')
    assert renderer.choose_backend() == 'osmesa'
    working.clear()
    assert renderer.choose_backend() == 'osmesa'  # in the environment now


def test_user_chooses_the_backend(working, monkeypatch):
    working.add('egl')
    monkeypatch.setenv('MUJOCO_GL', 'osmesa')
    assert renderer.choose_backend() == 'osmesa'


def test_machine_without_opengl_says_what_to_install(working):
    with pytest.raises(ConfigError, match='apt install libegl1 libgl1-mesa-dri'):
        renderer.choose_backend()
