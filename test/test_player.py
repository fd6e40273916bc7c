"""Scheduling of recorded messages: timing, loops, moved stamps, /clock. Nothing here waits."""

import struct
from collections import Counter, defaultdict
from itertools import islice
from pathlib import Path

import pytest

from oxygen_ros.errors import ConfigError
from oxygen_ros.replay.bag import Bag, Topic
from oxygen_ros.replay.player import Order, Player, Timing
from oxygen_ros.replay.recorded import Message
from oxygen_ros.replay.selection import is_own_output, parse_remaps, select_topics
from oxygen_ros.replay.stamps import clock_message, read_stamp, write_stamp

DATA = Path(__file__).parent / 'data'
G1 = DATA / 'bags' / 'g1_two_cameras'
SECOND = 1_000_000_000
RECORDED = 1_700_000_000 * SECOND
START, NOW = 5_000 * SECOND, 1_800_000_000 * SECOND
JOINT_STATE, IMAGE, STRING = 'sensor_msgs/msg/JointState', 'sensor_msgs/msg/Image', 'std_msgs/msg/String'


class MemoryBag:
    """A recording that is a list of messages in time order."""

    def __init__(self, messages):
        self._messages = messages
        counts = Counter((message.topic, message.type) for message in messages)
        self.topics = [Topic(name, type_, count, count) for (name, type_), count in counts.items()]
        self.path = 'memory'
        self.start_ns, self.end_ns = messages[0].time_ns, messages[-1].time_ns
        self.duration_ns = self.end_ns - self.start_ns
        self.count = len(messages)

    def messages(self, topics):
        return (message for message in self._messages if message.topic in topics)


def stamped(seconds, topic='/joint_states', type_=JOINT_STATE, stamp=None, big_endian=False, tail=b'rest'):
    """Return a message recorded so long after the beginning, with a header stamp in ns (None: that of recording)."""
    time_ns = RECORDED + round(seconds * SECOND)
    stamp = time_ns if stamp is None else stamp
    head = b'\0\0\0\0' if big_endian else b'\0\1\0\0'
    return Message(time_ns, topic, type_,
                   head + struct.pack('>iI' if big_endian else '<iI', *divmod(stamp, SECOND)) + tail)


def played(messages, count=None, **timing):
    """Return the player and the first `count` (None: all) scheduled messages."""
    bag = MemoryBag(messages)
    player = Player(bag, bag.topics, Timing(**timing))
    return player, list(islice(player.schedule(START, NOW), count))


def seconds(scheduled):
    """Return the due times in seconds after the start."""
    return [round((item.due_ns - START) / SECOND, 6) for item in scheduled]


def test_messages_are_due_as_they_were_recorded():
    _, items = played([stamped(0), stamped(0.25), stamped(1)])
    assert seconds(items) == [0, 0.25, 1]


def test_rate_divides_the_time_between_messages():
    _, items = played([stamped(0), stamped(0.25), stamped(1)], rate=4.0)
    assert seconds(items) == [0, 0.0625, 0.25]


def test_start_offset_and_duration_cut_out_a_part():
    player, items = played([stamped(t) for t in (0, 1, 2, 3, 4)], start_offset=1.5, duration=2.0)
    assert seconds(items) == [0.5, 1.5]
    assert not player.whole and player.shortfalls == []


def test_latched_messages_before_the_start_offset_come_at_the_start():
    with Bag(G1) as bag:
        player = Player(bag, bag.topics, Timing(start_offset=2.0))
        early = list(islice(player.schedule(START, NOW), 2))
    assert [(item.topic, item.due_ns) for item in early] == [('/robot_description', START), ('/tf_static', START)]


def test_recorded_time_that_jumps_back_is_played_as_it_is():
    with Bag(DATA / 'cases' / '90-clock-jumps-back' / 'bag') as bag:
        items = list(Player(bag, bag.topics).schedule(START, NOW))
    assert len(items) == 400
    left = [read_stamp(item.data) for item in items if item.topic == '/left/image_raw']
    assert sum(a > b for a, b in zip(left, left[1:])) == 1 and left[:50] == left[50:]


def test_without_restamp_the_bytes_stay_and_time_jumps_back_in_a_loop():
    messages = [stamped(0), stamped(1)]
    _, items = played(messages, 5, loop=True)
    assert [item.data for item in items] == [messages[i % 2].data for i in range(5)]
    assert [item.loop for item in items] == [0, 0, 1, 1, 2]
    assert seconds(items) == sorted(seconds(items))
    assert len(set(seconds(items))) == 5


def test_restamp_makes_the_recording_happen_now():
    _, items = played([stamped(0), stamped(0.5, stamp=RECORDED + SECOND // 4)], restamp=True)
    assert [read_stamp(item.data) for item in items] == [NOW, NOW + SECOND // 4]


def test_restamp_follows_the_rate():
    _, items = played([stamped(0), stamped(1)], restamp=True, rate=4.0)
    assert [read_stamp(item.data) - NOW for item in items] == [0, SECOND // 4]


@pytest.mark.parametrize('big_endian', [False, True])
def test_restamp_changes_the_stamp_and_nothing_else(big_endian):
    message = stamped(0, big_endian=big_endian, tail=b'\x07' * 30)
    _, (item,) = played([message], restamp=True)
    assert item.data[:4] == message.data[:4] and item.data[12:] == message.data[12:]
    order = '>iI' if big_endian else '<iI'
    assert struct.unpack_from(order, item.data, 4) == divmod(NOW, SECOND)


def test_restamp_leaves_messages_without_a_header_and_stamps_of_zero():
    text = Message(RECORDED, '/text', STRING, b'\0\1\0\0\3\0\0\0hi\0\0\0\0')
    unset = stamped(1, stamp=0)
    short = Message(RECORDED + 2 * SECOND, '/joint_states', JOINT_STATE, b'\0\1\0\0\1\2')
    _, items = played([text, unset, short], restamp=True)
    assert [item.data for item in items] == [text.data, unset.data, short.data]


def test_restamp_says_once_which_inner_stamps_stay():
    transforms = [stamped(t, '/tf', 'tf2_msgs/msg/TFMessage') for t in (0, 1)]
    player, items = played(transforms, restamp=True)
    assert [item.data for item in items] == [message.data for message in transforms]
    assert len(player.notes) == 1 and '/tf' in player.notes[0]


def test_restamp_goes_on_increasing_over_loops_also_with_late_stamps():
    # The first image was stamped long before it was recorded, the last one at once.
    messages = [stamped(0, '/image', IMAGE, stamp=RECORDED - SECOND // 2), stamped(0.1), stamped(0.9),
                stamped(1, '/image', IMAGE)]
    _, items = played(messages, 20, restamp=True, loop=True)
    stamps = defaultdict(list)
    for item in items:
        stamps[item.topic].append(read_stamp(item.data))
    for values in stamps.values():
        assert all(a < b for a, b in zip(values, values[1:]))
    assert [item.loop for item in items] == [i // 4 for i in range(20)]


def test_restamp_closes_the_distance_of_simulated_time():
    messages = [stamped(t, stamp=100 * SECOND + round(t * SECOND)) for t in (0, 1)]
    player, items = played(messages, restamp=True)
    assert [read_stamp(item.data) - NOW for item in items] == [0, SECOND]
    assert any('away from the time of recording' in note for note in player.notes)


def test_own_definitions_tell_whether_there_is_a_header():
    text = 'std_msgs/Header header\nuint8 value\n'
    bag = MemoryBag([stamped(0, '/mine', 'my_msgs/msg/Mine'), stamped(0, '/other', 'my_msgs/msg/Other')])
    topics = [Topic('/mine', 'my_msgs/msg/Mine', 1, 1, definition=text, definition_format='ros2msg'),
              Topic('/other', 'my_msgs/msg/Other', 1, 1, definition='uint64 number\n', definition_format='ros2msg')]
    items = list(Player(bag, topics, Timing(restamp=True)).schedule(START, NOW))
    assert [read_stamp(item.data) for item in items] == [NOW, RECORDED]


def test_clock_ticks_between_messages():
    _, items = played([stamped(0), stamped(0.25)], clock_hz=10.0)
    assert [(item.topic, at) for item, at in zip(items, seconds(items))] == [
        ('/clock', 0), ('/joint_states', 0), ('/clock', 0.1), ('/clock', 0.2), ('/joint_states', 0.25)]
    assert [read_stamp(item.data) - RECORDED for item in items if item.topic == '/clock'] == [
        0, SECOND // 10, SECOND // 5]


def test_clock_runs_at_the_rate_and_jumps_back_at_each_loop():
    _, items = played([stamped(0), stamped(1)], 60, clock_hz=20.0, rate=2.0, loop=True)
    clock = [read_stamp(item.data) - RECORDED for item in items if item.topic == '/clock']
    assert clock[:11] == [i * SECOND // 10 for i in range(11)]
    steps = [b - a for a, b in zip(clock, clock[1:])]
    assert [step for step in steps if step != SECOND // 10] == [-int(1.4 * SECOND)] * items[-1].loop


def test_clock_goes_on_with_restamp():
    _, items = played([stamped(0), stamped(1)], 60, clock_hz=20.0, loop=True, restamp=True)
    clock = [read_stamp(item.data) for item in items if item.topic == '/clock']
    assert clock == [NOW + i * SECOND // 20 for i in range(len(clock))]


def test_clock_message_is_little_endian_cdr():
    assert clock_message(3 * SECOND + 7) == b'\0\1\0\0\3\0\0\0\7\0\0\0'


def test_missing_messages_are_named_once_the_recording_was_played():
    bag = MemoryBag([stamped(0), stamped(1)])
    player = Player(bag, [Topic('/joint_states', JOINT_STATE, 2, 5), Topic('/gone', STRING, 0, 3)], Timing())
    assert player.shortfalls == []
    assert len(list(player.schedule(START, NOW))) == 2
    assert player.shortfalls == ['/joint_states: 5 messages promised, 2 delivered',
                                 '/gone: 3 messages promised, 0 delivered']


def test_loop_over_nothing_ends():
    player, _ = played([stamped(0)])
    empty = Player(player.bag, [], Timing(loop=True))
    assert list(empty.schedule(START, NOW)) == []


@pytest.mark.parametrize('wrong', [
    {'rate': 0.0}, {'rate': -1.0}, {'rate': float('nan')}, {'start_offset': -1.0}, {'duration': float('inf')},
    {'clock_hz': -1.0}])
def test_wrong_timing_is_refused_by_name(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Timing(**wrong)


def test_start_offset_behind_the_end_is_refused():
    with pytest.raises(ConfigError, match='lasts only 1.000 s'):
        played([stamped(0), stamped(1)], start_offset=2.0)


def test_own_outputs_are_left_out_unless_selected():
    with Bag(G1) as bag:
        chosen, left_out = select_topics(bag)
        names = {topic.name for topic in chosen}
        assert '/joint_trajectory' not in names and {'/joint_states', '/instruction', '/clock'} <= names
        assert '--topics' in left_out['/joint_trajectory']
        chosen, _ = select_topics(bag, ['/joint_trajectory', '/camera/*'])
        assert [topic.name for topic in chosen] == [
            '/joint_trajectory', '/camera/head/image_raw/compressed', '/camera/front/image_raw/compressed']
        chosen, left_out = select_topics(bag, own_clock=True)
        assert '/clock' in left_out and '/clock' not in {topic.name for topic in chosen}


def test_only_topics_of_the_right_type_are_own_outputs():
    assert is_own_output(Topic('/robot1/status', 'oxygen_ros/msg/EngineStatus', 1, 1))
    assert not is_own_output(Topic('/status', STRING, 1, 1))
    assert not is_own_output(Topic('/my_speech', 'oxygen_ros/msg/TextChunk', 1, 1))


def test_unknown_topic_is_refused_with_the_known_ones():
    with Bag(G1) as bag, pytest.raises(ConfigError, match='/joint_state. is not in the recording.*/joint_states'):
        select_topics(bag, ['/joint_state'])


def test_remap_rules():
    assert parse_remaps(['/a:=/b', '/c:=d']) == {'/a': '/b', '/c': 'd'}
    for wrong in ('/a', '/a:=', ':=/b', '/a=/b'):
        with pytest.raises(ConfigError, match='old:=new'):
            parse_remaps([wrong])


def test_stamps_round_trip():
    data = stamped(0).data
    assert read_stamp(write_stamp(data, 12_345_678_901)) == 12_345_678_901
    assert read_stamp(b'\0\1\0\0') is None
    assert read_stamp(b'\0\x09' + bytes(20)) is None  # an encoding in which the stamp lies elsewhere


def test_g1_recording_loops_with_increasing_stamps():
    with Bag(G1) as bag:
        topics, _ = select_topics(bag)
        player = Player(bag, topics, Timing(loop=True, restamp=True))
        latest = {}
        for item in islice(player.schedule(START, NOW), 3 * 364):
            if item.topic in ('/tf_static', '/robot_description', '/instruction'):
                continue
            stamp = read_stamp(item.data)
            assert stamp > latest.get(item.topic, 0)
            latest[item.topic] = stamp
        assert player.loops == 2 and len(latest) == 4


def test_header_order_undoes_what_the_way_to_the_recorder_did():
    """The image comes 0.15 s after it was taken, the joints at once: by stamp the image is before the joints."""
    messages = [stamped(0, stamp=RECORDED), stamped(0.1, stamp=RECORDED + SECOND // 10),
                stamped(0.15, '/image', IMAGE, stamp=RECORDED + SECOND // 100),
                stamped(0.2, stamp=RECORDED + SECOND // 5), stamped(0.3, stamp=RECORDED + 3 * SECOND // 10)]
    _, items = played(messages, order=Order.HEADER)
    assert [(item.topic, at) for item, at in zip(items, seconds(items))] == [
        ('/joint_states', 0), ('/image', 0.01), ('/joint_states', 0.1), ('/joint_states', 0.2), ('/joint_states', 0.3)]
    assert [item.data for item in items] == [messages[i].data for i in (0, 2, 1, 3, 4)]
    _, items = played(messages, order=Order.HEADER, rate=2.0)
    assert seconds(items) == [0, 0.005, 0.05, 0.1, 0.15]
    assert [item.topic for item in played(messages)[1]][2] == '/image'


def test_header_order_keeps_messages_without_a_usable_stamp_in_their_place():
    text = Message(RECORDED + SECOND // 2, '/text', STRING, b'\0\1\0\0\3\0\0\0hi\0\0\0\0')
    old = stamped(0.6, '/map', IMAGE, stamp=RECORDED - 500 * SECOND)
    unset = stamped(0.7, stamp=0)
    messages = [stamped(0.1 * i, '/image', IMAGE) for i in range(5)] + [text, old, unset, stamped(0.8, '/image', IMAGE)]
    player, items = played(messages, order=Order.HEADER)
    assert [item.topic for item in items] == [message.topic for message in messages]
    assert seconds(items)[5:] == [0.5, 0.6, 0.7, 0.8]
    assert any('/map: the stamps of 1 messages' in note for note in player.notes)


def test_header_order_follows_a_simulation_that_was_slower_than_the_recorder():
    """Stamps of simulated time, which ran at half speed: the recording is played as the simulation went."""
    messages = [stamped(0.2 * i, stamp=100 * SECOND + i * SECOND // 10) for i in range(60)]
    _, items = played(messages, order=Order.HEADER)
    assert seconds(items) == [round(0.1 * i, 6) for i in range(60)]
    assert seconds(played(messages)[1])[-1] == 11.8


def test_header_order_holds_back_no_more_than_its_window():
    bag = MemoryBag([stamped(0.1 * i) for i in range(1000)])
    taken = []
    source, bag.messages = bag.messages, lambda topics: (taken.append(1) or message for message in source(topics))
    schedule = Player(bag, bag.topics, Timing(order=Order.HEADER)).schedule(START, NOW)
    list(islice(schedule, 700))
    assert len(taken) <= 700 + 25


def test_pause_moves_what_follows_and_recorded_time_stands_still():
    bag = MemoryBag([stamped(0), stamped(1), stamped(2)])
    player = Player(bag, bag.topics, Timing(clock_hz=1.0))
    schedule = player.schedule(START, NOW)
    items = [next(schedule) for _ in range(3)]  # clock and message at 0, clock at 1
    items[2] = player.postpone(items[2], 5 * SECOND)
    items += schedule
    assert [(item.topic, at) for item, at in zip(items, seconds(items))] == [
        ('/clock', 0), ('/joint_states', 0), ('/clock', 6), ('/joint_states', 6), ('/clock', 7), ('/joint_states', 7)]
    assert [read_stamp(item.data) - RECORDED for item in items] == [i // 2 * SECOND for i in range(6)]


def test_pause_with_restamp_goes_on_at_a_later_time():
    bag = MemoryBag([stamped(0), stamped(1), stamped(2)])
    player = Player(bag, bag.topics, Timing(restamp=True, clock_hz=1.0))
    schedule = player.schedule(START, NOW)
    items = [next(schedule) for _ in range(3)]
    items[2] = player.postpone(items[2], 5 * SECOND)
    items[3:] = [next(schedule)]
    items[3] = player.postpone(items[3], SECOND)
    items += schedule
    assert seconds(items) == [0, 0, 6, 7, 8, 8]
    assert [read_stamp(item.data) - NOW for item in items] == [0, 0, 6 * SECOND, 7 * SECOND, 8 * SECOND, 8 * SECOND]
