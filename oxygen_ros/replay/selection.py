"""Which topics of a recording are played, and under which names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from oxygen_ros.errors import ConfigError
from oxygen_ros.replay.bag import Bag, Topic
from oxygen_ros.replay.player import CLOCK_TOPIC

# What the nodes of this package publish. Played back they would mix with what the running nodes say, so they are left
# out unless they are selected by name. The type is compared as well: other packages have a topic `status`, too.
OWN_OUTPUTS = {
    'frames': 'oxygen_ros/msg/Frame',
    'joint_trajectory': 'trajectory_msgs/msg/JointTrajectory',
    'joint_commands': 'sensor_msgs/msg/JointState',
    'speech': 'oxygen_ros/msg/TextChunk',
    'speech/sentences': 'std_msgs/msg/String',
    'memory': 'oxygen_ros/msg/MemoryEntry',
    'subtask': 'std_msgs/msg/String',
    'status': 'oxygen_ros/msg/EngineStatus',
    'diagnostics': 'diagnostic_msgs/msg/DiagnosticArray',
}


def is_own_output(topic: Topic) -> bool:
    """Whether a node of this package publishes such a topic, in any namespace."""
    return any(('/' + topic.name.lstrip('/')).endswith('/' + name) and topic.type == type_
               for name, type_ in OWN_OUTPUTS.items())


def select_topics(bag: Bag, wanted: Sequence[str] = (), own_clock: bool = False) -> tuple[list[Topic], dict[str, str]]:
    """
    Choose the topics to play.

    :param wanted: names or patterns such as `/camera/*`; empty for all but the suite's own outputs.
    :param own_clock: whether the replay publishes /clock itself, so that the recorded one is left out.
    :returns: the topics, and name -> reason of those left out.
    :raises ConfigError: when a name or pattern fits no topic; lists the topics that there are.
    """
    for pattern in wanted:
        if not any(fnmatchcase(topic.name, pattern) for topic in bag.topics):
            raise ConfigError(f'topic {pattern!r} is not in the recording {bag.path}: it has '
                              f'{", ".join(sorted(topic.name for topic in bag.topics)) or "no topics"}')
    chosen, left_out = [], {}
    for topic in bag.topics:
        if wanted and not any(fnmatchcase(topic.name, pattern) for pattern in wanted):
            continue
        if own_clock and topic.name == CLOCK_TOPIC:
            left_out[topic.name] = 'the replay publishes its own clock'
        elif not wanted and is_own_output(topic):
            left_out[topic.name] = 'it is an output of this suite; select it with --topics to play it'
        else:
            chosen.append(topic)
    return chosen, left_out


def parse_remaps(rules: Sequence[str]) -> Mapping[str, str]:
    """Parse `old:=new` rules. :raises ConfigError: names a rule of another form."""
    remaps = {}
    for rule in rules:
        old, separator, new = rule.partition(':=')
        if not (old and separator and new):
            raise ConfigError(f'remap rule {rule!r} is not of the form old:=new, for example /image_raw:=/head/image')
        remaps[old] = new
    return remaps
