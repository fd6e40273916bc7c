"""Inputs of a controller, which must not go on for ever: they are at rest while nothing executes."""

import numpy as np
import pytest

from oxygen_ros.errors import ConfigError
from oxygen_ros.models.registry import read_model_file
from oxygen_ros.robot.chunk import CommandSource, JointChunk
from oxygen_ros.robot.chunk_buffer import ChunkBuffer
from oxygen_ros.robot.command_stream import CommandStream
from oxygen_ros.robot.interpolation import Interpolation
from oxygen_ros.robot.robot_file import load_robot

ROBOT = load_robot('libero')
INPUTS = ROBOT.layout('libero').actions
STEP = 50_000_000
STATE = dict.fromkeys(ROBOT.layout('libero').state, 0.1)


def stream():
    rest = [joint.rest for joint in ROBOT.select(INPUTS)]
    buffer = ChunkBuffer(INPUTS, rest=rest, blend_ns=0, interpolation=Interpolation.LINEAR)
    commands = CommandStream(ROBOT, buffer)
    commands.measured(tuple(STATE), np.array(list(STATE.values())))
    return commands


def chunk(value=0.5, rows=4, number=1):
    return JointChunk(INPUTS, np.full((rows, 7), value), number, STEP, number, number)


def sampled(commands, *times):
    result = [commands.command(time) for time in times]
    return result[-1][0], result[-1][1].positions


def test_inputs_rest_and_the_gripper_holds_when_the_chunk_has_run_out():
    commands = stream()
    commands.push(chunk(), 0)
    command, positions = sampled(commands, 0, STEP, 2 * STEP)
    assert command.source is CommandSource.CHUNK
    np.testing.assert_allclose(positions, 0.5)
    command, positions = sampled(commands, *range(3 * STEP, 8 * STEP, STEP))
    assert command.source is CommandSource.HOLD
    np.testing.assert_allclose(positions, [0, 0, 0, 0, 0, 0, 0.5])
    assert not command.velocities.any()


def test_stop_brings_inputs_to_rest_and_tells_a_trajectory_controller_so():
    commands = stream()
    commands.push(chunk(), 0)
    sampled(commands, 0, STEP)
    hold = commands.stop(STEP + 1)
    np.testing.assert_allclose(hold.positions, [[0, 0, 0, 0, 0, 0, 0.5]])
    np.testing.assert_allclose(sampled(commands, 2 * STEP, 3 * STEP)[1], [0, 0, 0, 0, 0, 0, 0.5])


def test_inputs_begin_at_their_default_without_a_joint_state():
    commands = stream()
    commands.push(chunk(), 0)
    assert commands.command(0)[1].positions[-1] == -1.0  # the limiter's first command is where it begins


def test_file_of_the_benchmark_fits_the_model_file():
    model = read_model_file('pi05_libero')
    layout = ROBOT.layout(model.layout)
    assert (len(layout.state), len(layout.actions)) == (8, 7)
    ROBOT.require_cameras(model.content['cameras'])


def test_rest_outside_the_limits_is_refused(tmp_path):
    text = '''
name: one
cameras: {}
joints:
  - {name: a, lower: -1.0, upper: 1.0, velocity: 1.0, default: 0.0, rest: 2.0}
layouts: {}
'''
    (tmp_path / 'one.yaml').write_text(text)
    with pytest.raises(ConfigError, match='rest 2.0 is outside'):
        load_robot(str(tmp_path / 'one.yaml'))
