"""What is said about the running suite is so: SROS2 policy, presets, Foxglove layout, reference pages."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from oxygen_ros.msg import EngineStatus

ROOT = Path(__file__).parents[1]
POLICY = ElementTree.parse(ROOT / 'config/sros2/policy.xml').getroot()
PRESETS = sorted((ROOT / 'config/presets').glob('*.yaml'))
TOPICS_PAGE = (ROOT / 'doc/reference/topics.md').read_text()
CONTROLLER = 'forward_position_controller'
# What every ROS node may have, whether it does now or not.
EVERY_NODE = {('subscribe', '/clock'), ('subscribe', '/parameter_events'), ('publish', '/rosout'),
              ('publish', '/parameter_events'), ('reply', '~/get_type_description')}


def allowed(node: str) -> set[tuple[str, str]]:
    """Return what the policy allows a node: (publish, subscribe, request or reply; full name)."""
    rules = set()
    for group in POLICY.find(f"./enclaves/enclave/profiles/profile[@node='{node}']"):
        (kind, verdict), = group.attrib.items()
        assert verdict == 'ALLOW'
        rules |= {(kind, full_name(rule.text, node)) for rule in group}
    return rules


def full_name(name: str, node: str) -> str:
    name = name.replace('~', f'/{node}')
    return name if name.startswith('/') else f'/{name}'


def in_use(watcher, node: str) -> set[tuple[str, str]]:
    """Return what the graph says a node has."""
    graph = {'publish': watcher.get_publisher_names_and_types_by_node,
             'subscribe': watcher.get_subscriber_names_and_types_by_node,
             'reply': watcher.get_service_names_and_types_by_node,
             'request': watcher.get_client_names_and_types_by_node}
    return {(kind, name) for kind, ask in graph.items() for name, _ in ask(node, '/')}


@pytest.fixture
def nodes(ros_graph, tmp_path):
    """The nodes of the suite with everything switched on that makes a topic or a service; nothing is loaded."""
    def add(module: str, class_name: str, **parameters):
        node_type = getattr(importlib.import_module(f'oxygen_ros.nodes.{module}'), class_name)
        ros_graph.add(node_type, use_sim_time=True, **parameters)

    add('perception', 'PerceptionNode')
    add('inference', 'InferenceNode', **{'command.forward_controller': CONTROLLER})
    add('replay', 'ReplayNode', bag=str(ROOT / 'test/data/bags/g1_two_cameras'), start_paused=True, clock=10.0,
        wait_for_node='inference')
    add('simulator', 'SimulatorNode', view_rate=1.0, truth_rate=1.0, simulated_time=True)
    add('record', 'RecordNode', output=str(tmp_path / 'recording'))
    return ros_graph


def test_policy_and_topics_page_name_what_the_nodes_have(nodes):
    for node in ('perception', 'inference', 'replay', 'simulator', 'record'):
        rules = allowed(node)
        # rmw fills its graph from messages of its own, also for nodes of the same process.
        assert nodes.spin_until(lambda: ('reply', f'/{node}/list_parameters') in in_use(nodes.node, node))  # noqa: B023
        used = in_use(nodes.node, node)
        everything = ('subscribe', '/*') in rules
        missing = {rule for rule in used - rules if not (everything and rule[0] == 'subscribe')}
        assert missing == set(), f'{node} has these, and config/sros2/policy.xml does not allow them'
        # What the rules allow beyond: by a parameter, or only at times.
        optional = {('subscribe', '/pose'), ('subscribe', '/joint_trajectory'), ('subscribe', '/joint_commands'),
                    ('subscribe', '/*'), ('publish', '/utterance'), ('publish', '/tf'),
                    ('publish', '/tf_static')}  # a type of which not every machine has the package
        assert rules - used <= optional | {(kind, full_name(name, node)) for kind, name in EVERY_NODE}, node
        own = {name for _, name in used if not name.startswith(('/rosout', '/camera', '/parameter_events'))
               and not re.search(r'parameter|type_description', name)}
        if node == 'record':
            own = set()  # what it records is not its own
        for name in own:
            word = name.replace(f'/{node}/', '~/').removeprefix('/')
            assert f'`{word}`' in TOPICS_PAGE or f'`/{word}`' in TOPICS_PAGE, f'{name} of {node} is not in topics.md'


def test_operator_may_not_move_the_robot_nor_change_its_state():
    operator, inference = allowed('operator'), allowed('inference')
    asked = {name for kind, name in operator if kind == 'request'}
    assert asked == {name for kind, name in inference if kind == 'reply' and name.count('/') == 1}
    published = {name for kind, name in operator if kind == 'publish'} - {'/rosout', '/parameter_events'}
    assert published == {'/instruction', '/utterance'}


def flat(parameters: dict, prefix: str = '') -> dict:
    names = {}
    for name, value in parameters.items():
        names |= flat(value, f'{prefix}{name}.') if isinstance(value, dict) else {prefix + name: value}
    return names


@pytest.mark.parametrize('path', [*PRESETS, ROOT / 'config/simulation.yaml'], ids=lambda path: path.stem)
def test_preset_has_only_parameters_that_the_nodes_take(path):
    for node, content in yaml.safe_load(path.read_text()).items():
        table = {parameter.name: parameter for parameter in
                 importlib.import_module(f'oxygen_ros.nodes.{node.removeprefix("/**/")}').PARAMETERS}
        given = flat(content['ros__parameters'])
        assert given
        for name, value in given.items():
            assert type(value).__name__ == table[name].type_name, f'{name}: write it as {table[name].type_name}'
            assert table[name].check(value) == '', name


def test_presets_of_accelerators_say_that_they_are_not_measured():
    assert {path.stem for path in PRESETS} == {'rtx4090', 'thor', 'cpu'}
    for name in ('rtx4090', 'thor'):
        assert 'NOT MEASURED' in (ROOT / f'config/presets/{name}.yaml').read_text()


def test_foxglove_layout_shows_topics_and_fields_that_there_are():
    layout = json.loads((ROOT / 'config/foxglove_layout.json').read_text())
    published = {name for node in ('inference', 'perception', 'replay') for kind, name in allowed(node)
                 if kind == 'publish'}
    paths = re.findall(r'"(/[^"]+)"', json.dumps(layout['configById']))
    assert len(paths) > 20
    fields = EngineStatus.get_fields_and_field_types()
    for path in paths:
        topic, _, field = path.partition('.')
        assert topic in published, path
        if topic == '/status' and field:
            assert field in fields, path

    def leaves(part):
        return [part] if isinstance(part, str) else leaves(part['first']) + leaves(part['second'])

    assert sorted(leaves(layout['layout'])) == sorted(layout['configById'])


def test_rqt_perspective_plots_fields_that_there_are():
    perspective = json.loads((ROOT / 'config/oxygen.perspective').read_text())
    manager = perspective['groups']['pluginmanager']

    def value(entry):
        assert entry['type'] == 'repr'
        return ast.literal_eval(entry['repr'])

    running = value(manager['keys']['running-plugins'])
    instances = {f'plugin__{plugin.replace("/", "__")}__{number}' for plugin, numbers in running.items()
                 for number in numbers}
    assert {'rqt_plot/Plot', 'rqt_console/Console', 'rqt_runtime_monitor/RuntimeMonitor'} == set(running)
    assert set(manager['groups']) <= instances
    topics = [topic for group in manager['groups'].values()
              for topic in value(group['groups']['plugin']['keys']['topics'])]
    assert len(topics) > 10
    for topic in topics:
        name, field = re.fullmatch(r'/(\w+)/(\w+)', topic).groups()
        assert name == 'status' and field in EngineStatus.get_fields_and_field_types(), topic


def test_reference_pages_are_those_of_the_source():
    run = subprocess.run([sys.executable, ROOT / 'doc/generate.py', '--check'], capture_output=True, text=True)
    assert run.returncode == 0, f'{run.stdout}{run.stderr}: run `python doc/generate.py` and commit the pages'


@pytest.mark.parametrize('page', sorted((ROOT / 'doc').rglob('*.md')), ids=lambda path: path.stem)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r'\]\(([^)#:\s]+)(?:#[\w-]*)?\)', page.read_text()):
        assert (page.parent / target).exists(), f'{page.name}: {target}'


def test_commands_in_the_pages_exist():
    """Every `oxygen_ros SUBCOMMAND` has a subcommand, and every long option behind it is one of that subcommand."""
    commands = (ROOT / 'doc/reference/commands.md').read_text()
    options = {}
    for section in re.split(r'^## ', commands, flags=re.MULTILINE)[1:]:
        options[section.split()[0]] = set(re.findall(r'--[a-z][\w-]*', section)) | {'--help', '--ros-args'}
    for page in [ROOT / 'README.md', *(ROOT / 'doc').rglob('*.md')]:
        text = re.sub(r'\\\n\s*', ' ', page.read_text())
        for name, rest in re.findall(r'(?:^|[`\s])oxygen_ros ([a-z][a-z-]*)([^`\n#|]*)', text):
            if name not in options:
                assert not rest.startswith(' --'), f'{page.name}: oxygen_ros {name}'
                continue
            rest = rest.partition(' --ros-args')[0]
            for option in re.findall(r'(?<=\s)--[a-z][\w-]*', rest):
                assert option in options[name], f'{page.name}: oxygen_ros {name} {option}'


def source_texts() -> str:
    """Return all strings of the sources, one a line; what an f-string fills in is a NUL."""
    lines = []
    for path in (ROOT / 'oxygen_ros').rglob('*.py'):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                lines.append(''.join(part.value if isinstance(part, ast.Constant) else '\0' for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                lines.append(node.value)
    return '\n'.join(lines)


def test_texts_that_troubleshooting_quotes_are_in_the_sources():
    """Quoted texts stand in the first column, with `...` and capital letters for what differs."""
    texts = source_texts()
    rows = re.findall(r'^\| (`.*?) \|', (ROOT / 'doc/troubleshooting.md').read_text(), re.MULTILINE)
    quoted = [quote for row in rows for quote in re.findall(r'`([^`]+)`', row) if ' ' in quote]
    assert len(quoted) > 40
    for quote in quoted:
        for piece in re.split(r"\.\.\.|'?\b[A-Zxy]\b'?", quote):
            assert piece.strip(' :;,?') in texts, f'{quote!r}: nothing says {piece!r}'


def test_every_page_is_in_the_table_of_contents():
    listed = re.findall(r'^([\w/]+)$', (ROOT / 'doc/index.md').read_text(), re.MULTILINE)
    pages = {path.relative_to(ROOT / 'doc').with_suffix('').as_posix() for path in (ROOT / 'doc').rglob('*.md')
             if '_build' not in path.parts}
    assert sorted(listed) == sorted(pages - {'index'})


def test_pages_build_without_a_warning(tmp_path):
    for name in ('sphinx', 'myst_parser'):
        pytest.importorskip(name, reason='the extra doc is not installed')
    run = subprocess.run([sys.executable, '-m', 'sphinx', '-W', '-q', ROOT / 'doc', tmp_path], capture_output=True,
                         text=True)
    assert run.returncode == 0, run.stdout + run.stderr


def test_rosdoc2_builds_the_folder_of_the_pages():
    kind, settings = yaml.safe_load_all((ROOT / 'rosdoc2.yaml').read_text())
    assert kind == {'type': 'rosdoc2 config', 'version': 1}
    assert (ROOT / settings['builders'][0]['sphinx']['sphinx_sourcedir'] / 'conf.py').is_file()
