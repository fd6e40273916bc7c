"""Pictures of the simulator: which OpenGL is used, and what is said when there is none."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import numpy as np
import pytest

from oxygen_ros.errors import ConfigError
from oxygen_ros.simulation import renderer
from oxygen_ros.simulation.simulation import Simulation


@pytest.fixture
def working(monkeypatch):
    """Let only some backends work; returns the set of them."""
    backends: set[str] = set()
    monkeypatch.setenv('MUJOCO_GL', '')  # restored after the test, as deleting it would not be
    monkeypatch.setattr(renderer, '_working', set())
    monkeypatch.setattr(subprocess, 'run', lambda words, env, **_: SimpleNamespace(
        returncode=0 if env['MUJOCO_GL'] in backends else 1))
    return backends


def test_first_backend_that_works_is_taken_and_remembered(working, monkeypatch):
    working.add('osmesa')
    assert renderer.choose_backend() == 'osmesa'
    working.clear()
    assert renderer.choose_backend() == 'osmesa'  # in the environment now


def test_user_chooses_the_backend(working, monkeypatch):
    working |= {'egl', 'osmesa'}
    monkeypatch.setenv('MUJOCO_GL', 'osmesa')
    assert renderer.choose_backend() == 'osmesa'
    monkeypatch.setenv('MUJOCO_GL', 'glfw')
    with pytest.raises(ConfigError, match='MUJOCO_GL=glfw does not work'):
        renderer.choose_backend()


def test_machine_without_opengl_says_what_to_install(working):
    with pytest.raises(ConfigError, match='apt install libegl1 libgl1-mesa-dri'):
        renderer.choose_backend()


def test_renderers_do_not_disturb_each_other(renders):
    first, second = Simulation(seed=1), Simulation(seed=2)
    one, other = first.images(), second.images()
    assert not np.array_equal(one['head'], other['head'])
    for name, image in first.images().items():
        assert np.array_equal(image, one[name])
    assert first.view(80, 60).shape == (60, 80, 3)
    assert np.array_equal(second.images()['head'], other['head'])


def test_view_with_rough_edges_shows_the_same_and_leaves_the_light_as_it_was(renders):
    simulation = Simulation(seed=3)
    before = simulation.images()['head']
    smooth, rough = (simulation.view(160, 120, smooth).astype(int) for smooth in (True, False))
    assert rough.shape == smooth.shape and 0 < np.abs(rough - smooth).mean() < 6
    assert np.array_equal(simulation.images()['head'], before)
