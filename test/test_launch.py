"""Launch files and `oxygen_ros up` start the same nodes with the same parameters."""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import yaml

from oxygen_ros import up
from oxygen_ros.errors import ConfigError
from oxygen_ros.files import share_directories
from oxygen_ros.suite import (
    dds_environment,
    plan,
    plan_simulator,
    replay_arguments,
    simulate_arguments,
    suite_arguments,
)

LAUNCH = share_directories()[0] / 'launch'


def recorded(name: str) -> type:
    """Return a stand-in for a class of launch or launch_ros, which is not on PyPI. It only keeps its arguments."""
    def keep(self, *words, **options):
        vars(self).update(words=words, **options)
    return type(name, (), {'__init__': keep})


@pytest.fixture
def launch_modules(monkeypatch):
    names = {
        'launch': ('LaunchContext', 'LaunchDescription'),
        'launch.actions': ('DeclareLaunchArgument', 'IncludeLaunchDescription', 'OpaqueFunction', 'Shutdown'),
        'launch.launch_description_sources': ('PythonLaunchDescriptionSource',),
        'launch_ros': (),
        'launch_ros.actions': ('Node',),
    }
    for module_name, classes in names.items():
        module = ModuleType(module_name)
        vars(module).update({name: recorded(name) for name in classes})
        monkeypatch.setitem(sys.modules, module_name, module)


def load(name: str) -> list:
    """Return the actions of a launch file."""
    spec = importlib.util.spec_from_file_location('launch_file', LAUNCH / name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.generate_launch_description().words[0]


def of_kind(actions: list, kind: str) -> list:
    return [action for action in actions if type(action).__name__ == kind]


def start(actions: list, values: dict[str, str]) -> list:
    """Return the nodes that the opaque functions of a launch file start."""
    context = SimpleNamespace(launch_configurations=values)
    return [node for action in of_kind(actions, 'OpaqueFunction') for node in action.function(context)]


def values_with(**given: str) -> dict[str, str]:
    defaults = {argument.name: argument.default for argument in (*suite_arguments(), *replay_arguments())}
    return {**defaults, **given}


@pytest.mark.parametrize(('name', 'arguments'), [
    ('oxygen.launch.py', suite_arguments()), ('replay.launch.py', replay_arguments()),
    ('simulate.launch.py', simulate_arguments())])
def test_launch_file_declares_each_argument_with_a_description(launch_modules, name, arguments):
    declared = of_kind(load(name), 'DeclareLaunchArgument')
    assert [action.words[0] for action in declared] == [argument.name for argument in arguments]
    for action in declared:
        assert action.description
        assert not action.choices or action.default_value in action.choices


@pytest.mark.parametrize('name', ['replay.launch.py', 'simulate.launch.py'])
def test_launch_file_includes_the_one_of_the_suite(launch_modules, name):
    include, = of_kind(load(name), 'IncludeLaunchDescription')
    assert Path(include.words[0].words[0]) == LAUNCH / 'oxygen.launch.py'


def test_simulate_launch_file_starts_the_simulator_in_the_time_of_the_suite(launch_modules):
    defaults = {argument.name: argument.default for argument in (*suite_arguments(), *simulate_arguments())}
    values = defaults | {'seed': '7', 'use_sim_time': 'true', 'speed': '2', 'commands': 'joint_trajectory'}
    node, = start(load('simulate.launch.py'), values)
    assert (node.executable, node.name) == ('simulate', 'simulator')
    assert node.parameters[1] == plan_simulator(values).parameters
    assert node.parameters[1] == {'seed': 7, 'simulated_time': True, 'speed': 2.0, 'commands': 'joint_trajectory',
                                  'view_rate': 0.0, 'viewer': False}
    node, = start(load('simulate.launch.py'), defaults | {'speed': '2'})
    assert node.parameters[1]['speed'] == 1.0 and 'commands' not in node.parameters[1]


def test_simulated_robot_runs_with_the_parameters_of_its_policy(launch_modules):
    defaults = {argument.name: argument.default for argument in (*suite_arguments(), *simulate_arguments())}
    nodes = {node.executable: node for name in ('simulate.launch.py', 'oxygen.launch.py')
             for node in start(load(name), defaults)}
    assert {Path(node.parameters[0]).name for node in nodes.values()} == {'simulation.yaml'}
    assert nodes['inference'].parameters[1]['model'] == nodes['perception'].parameters[1]['robot'] == 'openarm'
    perception = yaml.safe_load(Path(defaults['params_file']).read_text())['/**/perception']['ros__parameters']
    assert perception['image_height'] == perception['image_width'] == 0  # pictures as the policy knows them


def test_oxygen_launch_file_starts_perception_and_inference(launch_modules):
    values = values_with(model='tiny', namespace='robot1', log_level='debug', autostart='false')
    nodes = {node.executable: node for node in start(load('oxygen.launch.py'), values)}
    assert sorted(nodes) == ['inference', 'perception']
    inference = nodes['inference']
    assert inference.namespace == 'robot1'
    assert inference.ros_arguments == ['--log-level', 'debug']
    params_file, parameters = inference.parameters
    assert Path(params_file).name == 'oxygen.yaml'
    assert parameters == {'model': 'tiny', 'autostart': False, 'use_sim_time': False}


def test_replay_launch_file_starts_replay(launch_modules, tmp_path):
    node, = start(load('replay.launch.py'), values_with(bag=str(tmp_path), topics='/a, /b', loop='true'))
    assert node.executable == 'replay'
    assert node.parameters[1] == {'bag': str(tmp_path), 'rate': 1.0, 'loop': True, 'clock': 0.0, 'restamp': True,
                                  'wait_for_node': 'inference', 'topics': ['/a', '/b']}


def test_replay_gives_either_a_clock_or_new_stamps(tmp_path):
    for sim_time in ('true', 'false'):
        runs = plan(values_with(bag=str(tmp_path), use_sim_time=sim_time))
        replay = runs[-1].parameters
        assert replay['restamp'] == (sim_time == 'false') == (replay['clock'] == 0.0)
        assert all(run.parameters['use_sim_time'] == (sim_time == 'true') for run in runs if run.name != 'replay')


def test_recording_comes_into_the_namespace(tmp_path):
    remap = plan(values_with(bag=str(tmp_path), namespace='robot1'))[-1].parameters['remap']
    assert '/joint_states:=joint_states' in remap
    assert 'remap' not in plan(values_with(bag=str(tmp_path)))[-1].parameters


def test_empty_argument_leaves_the_parameter_file_alone():
    assert plan(values_with())[0].parameters.keys() == {'autostart', 'use_sim_time'}


@pytest.mark.parametrize('given', [{'params_file': 'none.yaml'}, {'bag': 'none'}, {'bag': '.', 'rate': 'quick'}])
def test_wrong_value_is_named(given):
    with pytest.raises(ConfigError, match=list(given.values())[-1]):
        plan(values_with(**given))


def test_up_has_the_arguments_of_the_launch_files():
    parser = argparse.ArgumentParser()
    up.add_arguments(parser)
    values = vars(parser.parse_args([]))
    assert values == values_with()
    assert vars(parser.parse_args(['--use-sim-time', '--mode', 'isolated']))['use_sim_time'] == 'true'


def test_up_writes_parameters_as_the_nodes_read_them(tmp_path):
    values = values_with(bag=str(tmp_path), topics='/a,/b', namespace='robot1')
    words = up.command(plan(values)[-1], values)
    assert words[words.index('-m') + 1:][:2] == ['oxygen_ros', 'replay']
    assert {'loop:=false', 'rate:=1.0', 'restamp:=true', 'topics:=/a,/b', f'bag:={tmp_path}'} <= set(words)
    assert words[words.index('--namespace') + 1] == 'robot1'


def test_profile_of_the_user_is_kept(monkeypatch):
    monkeypatch.delenv('FASTRTPS_DEFAULT_PROFILES_FILE', raising=False)
    monkeypatch.delenv('FASTDDS_DEFAULT_PROFILES_FILE', raising=False)
    assert all(Path(path).name == 'shm.xml' for path in dds_environment().values())
    monkeypatch.setenv('FASTRTPS_DEFAULT_PROFILES_FILE', '/home/me/profile.xml')
    assert dds_environment() == {}


@pytest.mark.skipif(shutil.which('ros2') is None, reason='ros2 is part of a ROS distribution and not on PyPI')
@pytest.mark.parametrize('name', sorted(path.name for path in LAUNCH.glob('*.launch.py')))
def test_launch_file_tells_its_arguments_to_ros2_launch(name):
    shown = subprocess.run(['ros2', 'launch', str(LAUNCH / name), '--show-args'], capture_output=True, text=True,
                           timeout=120)
    assert shown.returncode == 0 and 'Arguments' in shown.stdout, shown.stderr
