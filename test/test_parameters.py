"""Parameters of a node: declared from a table, set from the command line, refused in one line."""

import pytest
import rclpy
from rclpy.parameter import Parameter

from oxygen_ros.errors import ConfigError
from oxygen_ros.nodes.parameters import NodeParameter, declare_parameters, override_rule, parameter_help

TABLE = (
    NodeParameter('rate', 10.0, 'Rate in Hz.', 0.1, 100.0),
    NodeParameter('count', 3, 'How many.', minimum=0, changeable=True),
    NodeParameter('robot', 'g1', 'Robot file.'),
    NodeParameter('mode', 'slow', 'How.', choices=('slow', 'fast'), changeable=True),
    NodeParameter('cameras', (), 'Names.'),
    NodeParameter('gains', (1.0,), 'Gains.', minimum=0.0),
    NodeParameter('loop', False, 'Again.'),
)


@pytest.fixture
def make_node(ros_domain):
    context = rclpy.Context()
    rclpy.init(context=context)
    nodes = []

    def make(**values):
        nodes.append(rclpy.create_node('tested', context=context, parameter_overrides=[
            Parameter(name, value=value) for name, value in values.items()]))
        return nodes[-1]

    yield make
    for node in nodes:
        node.destroy_node()
    context.try_shutdown()


def test_defaults_and_overrides(make_node):
    assert declare_parameters(make_node(rate=5.0, cameras=['head'], gains=[0.5, 2.0]), TABLE) == {
        'rate': 5.0, 'count': 3, 'robot': 'g1', 'mode': 'slow', 'cameras': ('head',), 'gains': (0.5, 2.0),
        'loop': False}
    assert declare_parameters(make_node(), TABLE)['cameras'] == ()


def test_every_wrong_value_is_named_in_one_line(make_node):
    with pytest.raises(ConfigError) as error:
        declare_parameters(make_node(rate=1000.0, count='x', mode='fats', gains=[1.0, -1.0], loop=1), TABLE)
    text = str(error.value)
    assert '\n' not in text
    for words in ("'rate': 1000 is out of range: 0.1 to 100", "'count' must be of type int", "did you mean 'fast'?",
                  "'gains': -1 is out of range", "'loop' must be of type bool"):
        assert words in text


def test_descriptors_carry_description_range_and_read_only(make_node):
    node = make_node()
    declare_parameters(node, TABLE)
    rate, count = node.describe_parameter('rate'), node.describe_parameter('count')
    assert rate.description == 'Rate in Hz.' and rate.read_only and not count.read_only
    assert (rate.floating_point_range[0].from_value, rate.floating_point_range[0].to_value) == (0.1, 100.0)
    assert node.describe_parameter('mode').additional_constraints == "one of 'slow', 'fast'"


def test_changes_while_running_are_checked(make_node):
    node = make_node()
    declare_parameters(node, TABLE)
    results = node.set_parameters([Parameter(name, value=value) for name, value in (
        ('rate', 5.0), ('count', -1), ('count', 7), ('mode', 'fats'), ('mode', 'fast'))])
    assert [result.successful for result in results] == [False, False, True, False, True]
    assert node.get_parameter('count').value == 7


@pytest.mark.parametrize('given, rule', [
    ('rate:=5', 'rate:=5.0'), ('rate:=1e1', 'rate:=10.0'), ('robot:=12', 'robot:="12"'), ('robot:=', 'robot:=""'),
    ('cameras:=head,front', 'cameras:=["head", "front"]'), ('cameras:=[head, front]', 'cameras:=["head", "front"]'),
    ('cameras:=', 'cameras:=[""]'), ('gains:=[1, 2]', 'gains:=[1.0, 2.0]'), ('gains:=3', 'gains:=[3.0]'),
    ('loop:=true', 'loop:=true'), ('count:=4', 'count:=4'), ('use_sim_time:=true', 'use_sim_time:=true'),
    ('qos_overrides./x.subscription.depth:=3', 'qos_overrides./x.subscription.depth:=3')])
def test_command_line_is_typed_by_the_table(given, rule):
    assert override_rule(given, TABLE) == rule


@pytest.mark.parametrize('given, words', [
    ('rates:=5', "unknown parameter 'rates': did you mean rate?"), ('rate:=fast', 'must be of type float'),
    ('gains:=x', 'must be of type list of float'),
    ('count:=1.5', 'must be of type int'), ('loop:=maybe', 'must be of type bool'),
    ('rate:=.nan', 'not a finite number'), ('wheels:=4', 'choose one of cameras, count'),
    ('mode:=x', "one of 'slow', 'fast'"), ('rate', 'not of the form name:=value'), ('rate:=0', 'out of range')])
def test_wrong_command_line_is_refused_with_the_remedy(given, words):
    with pytest.raises(ConfigError) as error:
        override_rule(given, TABLE)
    assert words in str(error.value)


def test_help_lists_every_parameter():
    text = parameter_help(TABLE)
    for parameter in TABLE:
        assert f'{parameter.name} ({parameter.type_name}' in text and parameter.description in text
