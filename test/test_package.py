"""What the package says about itself is true: version, dependencies, programs, interfaces, configuration files."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from catkin_pkg.package import parse_package

from oxygen_ros.cli import SUBCOMMANDS, main
from oxygen_ros.version import version

ROOT = Path(__file__).parents[1]
MANIFEST = ElementTree.parse(ROOT / 'package.xml').getroot()
PYPROJECT = (ROOT / 'pyproject.toml').read_text()
CMAKE = (ROOT / 'CMakeLists.txt').read_text()
INTERFACES = sorted([*ROOT.glob('msg/*.msg'), *ROOT.glob('srv/*.srv')])

# Python packages whose project on PyPI has another name.
PROJECTS = {'cv2': 'opencv-python-headless', 'espeakng_loader': 'espeakng-loader', 'PIL': 'pillow',
            'prompt_toolkit': 'prompt-toolkit', 'pynvml': 'nvidia-ml-py', 'yaml': 'pyyaml'}
# Not on PyPI: used where a ROS distribution has them.
DISTRIBUTION_ONLY = {'cv_bridge', 'launch', 'launch_ros'}
# Come with rclpy.
WITH_RCLPY = {'rcl_interfaces', 'rpyutils'}


def sources() -> list[Path]:
    """Return the Python files of the package, without generated ones."""
    package = ROOT / 'oxygen_ros'
    return [path for path in package.rglob('*.py') if path.relative_to(package).parts[0] not in ('msg', 'srv')]


def imported_packages() -> set[str]:
    """Return the top-level packages that our files import, without those of Python and our own."""
    names: set[str] = set()
    for path in [*sources(), *(ROOT / 'launch').glob('*.py')]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition('.')[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names.add(node.module.partition('.')[0])
    return names - set(sys.stdlib_module_names) - {'oxygen_ros'}


def interface_packages() -> set[str]:
    """Return the packages whose messages our messages use."""
    fields = '\n'.join(path.read_text() for path in INTERFACES)
    return set(re.findall(r'^(\w+)/\w+(?:\[\d*\])? ', fields, re.MULTILINE)) - {'oxygen_ros'}


def is_ros(name: str) -> bool:
    return name == 'rclpy' or name in DISTRIBUTION_ONLY or name.endswith(('_msgs', '_srvs', '_interfaces'))


def flat(parameters: dict, prefix: str = '') -> dict:
    """Return nested parameters as ROS names them: {'action': {'rate': 5.0}} is action.rate."""
    names = {}
    for name, value in parameters.items():
        names |= flat(value, f'{prefix}{name}.') if isinstance(value, dict) else {prefix + name: value}
    return names


def test_version_is_named_only_in_the_manifest(capsys):
    number = MANIFEST.findtext('version')
    assert version() == number
    with pytest.raises(SystemExit, match='^0$'):
        main(['--version'])
    assert capsys.readouterr().out == f'oxygen_ros {number}\n'
    for name in ('setup.py', 'pyproject.toml', 'CMakeLists.txt', 'oxygen_ros/__init__.py'):
        assert f"'{number}'" not in (text := (ROOT / name).read_text()) and f'"{number}"' not in text, name


def test_manifest_is_valid():
    warnings: list[str] = []
    package = parse_package(ROOT / 'package.xml', warnings=warnings)
    package.validate(warnings=warnings)
    assert warnings == []


def test_ros_packages_that_are_used_are_declared():
    declared = {element.text for kind in ('depend', 'exec_depend') for element in MANIFEST.findall(kind)}
    used = {name for name in imported_packages() if is_ros(name)} | interface_packages()
    assert used - WITH_RCLPY <= declared


def test_packages_that_are_used_come_with_pip():
    projects = {re.split(r'[\[=~<>]', text)[0] for text in re.findall(r'"([a-z][\w.\[\]~=<>,-]*)"', PYPROJECT)}
    for name in imported_packages() - DISTRIBUTION_ONLY - WITH_RCLPY:
        project = f'ros-jazzy-{name.replace("_", "-")}' if is_ros(name) else PROJECTS.get(name, name)
        assert project in projects, f'{name} is imported, but pyproject.toml does not name {project}'


def test_message_packages_are_found_by_cmake():
    found = re.search(r'set\(dependencies ([^)]*)\)', CMAKE)[1].split()
    assert set(found) == interface_packages()
    assert set(found) <= {element.text for element in MANIFEST.findall('depend')}


def test_every_folder_of_the_package_is_a_python_package():
    for path in sources():
        assert (path.parent / '__init__.py').is_file(), f'{path.parent} has no __init__.py: it would not be installed'


def test_console_script_is_there():
    module, function = re.search(r'^oxygen_ros = "([\w.]+):(\w+)"', PYPROJECT, re.MULTILINE).groups()
    assert getattr(importlib.import_module(module), function) is main


def test_programs_of_the_distribution_are_subcommands():
    programs = re.search(r'foreach\(program ([\w ]+)\)', CMAKE)[1].split()
    assert {'demo', 'inference', 'perception', 'replay'} <= set(programs)
    assert set(programs) - {'oxygen_ros'} <= set(SUBCOMMANDS)


@pytest.mark.parametrize('name', SUBCOMMANDS)
def test_subcommand_has_help(name, capsys):
    with pytest.raises(SystemExit, match='^0$'):
        main([name, '--help'])
    assert f'usage: oxygen_ros {name}' in capsys.readouterr().out


@pytest.mark.parametrize('path', INTERFACES, ids=lambda path: path.name)
def test_interface_imports_and_can_be_sent(path):
    interface = getattr(importlib.import_module(f'oxygen_ros.{path.parent.name}'), path.stem)
    kind = 'srv' if path.parent.name == 'srv' else 'msg'
    support = importlib.import_module('rclpy.type_support')
    getattr(support, 'check_for_type_support' if kind == 'msg' else 'check_is_valid_srv_type')(interface)


@pytest.mark.parametrize('path', INTERFACES, ids=lambda path: path.name)
def test_every_field_of_an_interface_is_commented(path):
    """A comment stands on the field's line, or above it in the same paragraph."""
    for part in path.read_text().split('---'):
        for paragraph in part.strip().split('\n\n'):
            commented = False
            for line in paragraph.splitlines():
                commented |= line.startswith('#')
                assert commented or '#' in line, f'{path.name}: {line!r} has no comment'


@pytest.mark.parametrize('path', sorted((ROOT / 'config').rglob('*.yaml')), ids=lambda path: path.name)
def test_configuration_file_is_a_mapping(path):
    assert isinstance(yaml.safe_load(path.read_text()), dict)


@pytest.mark.parametrize('node', ['perception', 'inference', 'replay', 'simulator', 'hear', 'speak'])
def test_parameter_file_matches_the_node(node):
    """It names every parameter of the node but those that differ with each run, and the values are the defaults."""
    table = {parameter.name: parameter for parameter in importlib.import_module(f'oxygen_ros.nodes.{node}').PARAMETERS}
    given = flat(yaml.safe_load((ROOT / 'config/oxygen.yaml').read_text())[f'/**/{node}']['ros__parameters'])
    assert set(given) == set(table) - {'autostart', 'bag'}, 'config/oxygen.yaml and the node have different parameters'
    for name, value in given.items():
        default = table[name].default
        if isinstance(default, tuple):
            default = list(default) or ['']  # as ROS has no empty list of strings
        assert (type(value), value) == (type(default), default), name


def test_shared_memory_profile_is_the_default_profile():
    profile = ElementTree.parse(ROOT / 'config/shm.xml').getroot()
    participant = profile.find('.//{*}participant')
    assert participant.get('is_default_profile') == 'true'
    names = {element.text for element in participant.iterfind('.//{*}userTransports/{*}transport_id')}
    assert names == {element.text for element in profile.iterfind('.//{*}transport_descriptor/{*}transport_id')}
