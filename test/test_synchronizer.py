"""Pictures of several cameras and joint states become frames, by their stamps, whatever goes wrong."""

import json
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from rosbags.highlevel import AnyReader

from oxygen_ros.perception import pairing
from oxygen_ros.perception.images import ImageError, ImageFault, decode_raw
from oxygen_ros.perception.joint_merger import JointMerger
from oxygen_ros.perception.pairing import Picture
from oxygen_ros.perception.sync_options import JOINTS, Camera, MissingPolicy, StampPolicy, SyncEvent, SyncOptions
from oxygen_ros.perception.synchronizer import FrameSynchronizer

CASES = Path(__file__).parent / 'data' / 'cases'
MS = 1_000_000
LEFT, RIGHT = '/left/image_raw', '/right/image_raw'


def at(milliseconds):
    """Return a time in nanoseconds; zero would be an unset stamp, or a clock that has not started."""
    return 1_000_000 * MS + milliseconds * MS


def picture():
    return lambda: np.zeros((2, 2, 3), np.uint8)


def make(*cameras, joints=None, pool=None, **options):
    """Make a synchronizer without a rate limit; cameras by name or Camera."""
    cameras = [Camera(camera) if isinstance(camera, str) else camera for camera in cameras]
    return FrameSynchronizer(cameras, joints or JointMerger(), SyncOptions(**{'rate_hz': 0.0, **options}), pool)


def feed(sync, camera, milliseconds, now=None, decode=None):
    """Add a picture stamped in milliseconds and return the frame that it completes."""
    now_ns = at(milliseconds if now is None else now)
    sync.add_image(camera, at(milliseconds), now_ns, decode or picture())
    return sync.take(now_ns)


def stamps(frame):
    return {name: (stamp_ns - at(0)) // MS for name, stamp_ns in frame.image_stamps.items()}


def replay(case, sync, folder='bag'):
    """Play a bag in log time; return (index in loop of left, of right) per frame. Pictures carry their index."""
    frames = []
    counts = {}
    with AnyReader([CASES / case / folder]) as bag:
        for connection, log_ns, raw in bag.messages(
                [connection for connection in bag.connections if connection.msgtype == 'sensor_msgs/msg/Image']):
            message = bag.deserialize(raw, connection.msgtype)
            index = counts.setdefault(connection.topic, 0)
            counts[connection.topic] += 1
            stamp_ns = message.header.stamp.sec * 10**9 + message.header.stamp.nanosec

            def decode(message=message, index=index):
                decode_raw(message.encoding, message.height, message.width, message.step, False, message.data)
                return np.full((1, 1, 3), index, np.uint8)

            sync.add_image(connection.topic, stamp_ns, log_ns, decode)
            frame = sync.take(log_ns)
            if frame is not None:
                frames.append(tuple(image[0, 0, 0] for image in frame.observation.images.values()))
    return frames


def expected(case):
    return json.loads((CASES / case / 'case.json').read_text())['expected']


@pytest.mark.parametrize('rate', [0.0, 10.0])
def test_zero_stamps_are_paired_by_their_arrival(rate):
    case = '22-header-stamp-zero'
    sync = make(LEFT, RIGHT, rate_hz=rate)
    assert replay(case, sync) == [(i, i) for i in range(expected(case)['pairs_if_receive_time'])]
    assert sync.counters[RIGHT][SyncEvent.RECEIVE_TIME] == 30 and sync.counters[LEFT][SyncEvent.RECEIVE_TIME] == 0


def test_zero_stamps_are_refused_if_headers_are_demanded():
    sync = make(LEFT, RIGHT, stamps=StampPolicy.HEADER)
    assert replay('22-header-stamp-zero', sync) == []
    assert sync.counters[RIGHT][SyncEvent.ZERO_STAMP] == 30


@pytest.mark.parametrize('folder', ['bag_mcap', 'bag_sqlite3'])
def test_pairs_of_a_bag_in_log_order(folder):
    assert replay('23-file-order-is-not-time-order', make(LEFT, RIGHT), folder) == [(i, i) for i in range(10)]


@pytest.mark.parametrize('rate', [0.0, 10.0])
def test_no_frames_while_a_camera_is_frozen_and_pairs_go_on_after_it(rate):
    case = '24-one-camera-freezes'
    first, last = expected(case)['gap_indices']
    pairs = replay(case, make(LEFT, RIGHT, rate_hz=rate))
    assert len(pairs) == expected(case)['pairs']
    assert [left for left, _ in pairs] == [i for i in range(60) if not first <= i <= last]
    assert [right for _, right in pairs] == list(range(expected(case)['pairs']))  # right lacks the pictures of the gap


def test_stamps_that_start_anew_pair_within_their_loop():
    case = '90-clock-jumps-back'
    sync = make(LEFT, RIGHT)
    assert replay(case, sync) == [(i, i) for i in range(expected(case)['pairs'])]
    assert sync.counters[LEFT][SyncEvent.RESTART] == 1


def test_camera_that_lags_decides_and_the_nearest_picture_of_the_other_is_taken():
    sync = make('a', 'b')
    for milliseconds in (0, 33, 66):
        assert feed(sync, 'a', milliseconds) is None
    frame = feed(sync, 'b', 40, now=70)
    assert stamps(frame) == {'a': 33, 'b': 40}
    assert frame.observation.stamp_ns == at(40) and frame.observation.number == 1


def test_slop_is_kept_over_all_cameras():
    sync = make('a', 'b', 'c', slop_ns=50 * MS)
    feed(sync, 'a', 0)
    feed(sync, 'b', 40)
    assert feed(sync, 'c', 80) is None  # b is within 40 ms of both, but a and c are 80 ms apart
    frame = feed(sync, 'a', 60, now=90)
    assert stamps(frame) == {'a': 60, 'b': 40, 'c': 80}


def test_picture_is_used_once():
    sync = make('a', 'b')
    feed(sync, 'a', 0)
    assert feed(sync, 'b', 10) is not None
    assert feed(sync, 'a', 33) is None  # b 10 is near enough, but used
    assert sync.take(at(40)) is None


def test_newest_set_only_after_a_delay():
    sync = make('a', 'b')
    for milliseconds in range(0, 500, 100):
        sync.add_image('a', at(milliseconds), at(500), picture())
        sync.add_image('b', at(milliseconds), at(500), picture())
    assert stamps(sync.take(at(500))) == {'a': 400, 'b': 400}
    assert sync.take(at(500)) is None
    assert sync.counters['a'][SyncEvent.SKIPPED] == 4


def test_pictures_out_of_order_still_pair_and_late_ones_are_refused():
    sync = make('a', 'b')
    sync.add_image('a', at(100), at(100), picture())
    sync.add_image('a', at(0), at(100), picture())
    sync.add_image('a', at(50), at(100), picture())
    assert stamps(feed(sync, 'b', 52, now=100)) == {'a': 50, 'b': 52}
    assert sync.add_image('a', at(40), at(100), picture()) is SyncEvent.LATE
    assert sync.add_image('a', at(50), at(100), picture()) is SyncEvent.DUPLICATE
    assert sync.add_image('b', at(90), at(100), picture()) is SyncEvent.RECEIVED
    assert sync.add_image('b', at(90), at(100), picture()) is SyncEvent.DUPLICATE


def test_stamps_of_the_future_are_refused_and_block_nothing():
    sync = make('a', future_ns=100 * MS)
    assert sync.add_image('a', at(10_000), at(1000), picture()) is SyncEvent.FUTURE
    assert stamps(feed(sync, 'a', 1050, now=1000)) == {'a': 1050}


def test_nothing_is_taken_before_the_clock_starts():
    sync = make('a', joints=JointMerger(('j',)), stamps=StampPolicy.RECEIVE)
    assert sync.add_image('a', 5 * MS, 0, picture()) is SyncEvent.NO_CLOCK
    assert sync.add_joints(('j',), (1.0,), (), 5 * MS, 0) is SyncEvent.NO_CLOCK
    assert sync.take(0) is None


def test_receive_policy_ignores_stamps():
    sync = make('a', 'b', stamps=StampPolicy.RECEIVE)
    feed(sync, 'a', 999_999, now=10)
    assert stamps(feed(sync, 'b', 1, now=20)) == {'a': 10, 'b': 20}


def test_clear_drops_pictures_and_joints_but_not_the_numbers():
    sync = make('a', joints=JointMerger(('j',)))
    sync.add_joints(('j',), (1.0,), (), at(5000), at(5000))
    assert feed(sync, 'a', 5000).observation.number == 1
    sync.clear()
    frame = feed(sync, 'a', 100)
    assert frame.observation.number == 2 and frame.joints.missing == ('j',)


def test_required_camera_holds_back_the_frame():
    sync = make('a', 'b')
    assert all(feed(sync, 'a', milliseconds) is None for milliseconds in range(0, 3000, 100))


def test_optional_camera_is_waited_for_while_alive_and_left_out_then():
    sync = make('a', Camera('b', MissingPolicy.OPTIONAL), wait_ns=50 * MS, alive_ns=1000 * MS)
    feed(sync, 'b', 1)
    assert stamps(feed(sync, 'a', 0, now=2)) == {'a': 0, 'b': 1}
    assert feed(sync, 'a', 100) is None          # b is alive: wait
    assert sync.take(at(149)) is None
    assert stamps(sync.take(at(150))) == {'a': 100}
    assert stamps(feed(sync, 'a', 1200)) == {'a': 1200}  # b is dead: no wait


def test_wait_ends_although_newer_pictures_keep_coming():
    sync = make('a', Camera('b', MissingPolicy.OPTIONAL), wait_ns=50 * MS)
    feed(sync, 'b', 1)
    feed(sync, 'a', 0, now=2)
    frames = [feed(sync, 'a', milliseconds) for milliseconds in range(100, 200, 20)]
    assert [stamps(frame) for frame in frames if frame] == [{'a': 160}]


def test_late_picture_of_an_optional_camera_still_fits_in_after_the_wait():
    sync = make('a', 'b', Camera('c', MissingPolicy.OPTIONAL), Camera('d', MissingPolicy.OPTIONAL), wait_ns=20 * MS)
    for name in 'abcd':
        sync.add_image(name, at(1), at(1), picture())
    assert sync.take(at(1)) is not None
    feed(sync, 'a', 100)
    feed(sync, 'c', 110)
    assert feed(sync, 'b', 105, now=112) is None
    assert stamps(sync.take(at(140))) == {'a': 100, 'b': 105, 'c': 110}


def test_held_picture_is_used_up_to_its_age():
    sync = make('a', Camera('b', MissingPolicy.HOLD, hold_ns=500 * MS), wait_ns=0)
    feed(sync, 'b', 0)
    feed(sync, 'a', 10)
    assert stamps(feed(sync, 'a', 500)) == {'a': 500, 'b': 0}
    assert stamps(feed(sync, 'a', 501)) == {'a': 501}


def test_only_optional_cameras_give_frames_in_order_of_time():
    cameras = [Camera(name, MissingPolicy.OPTIONAL) for name in 'ab']
    sync = make(*cameras, wait_ns=50 * MS, alive_ns=100 * MS)
    assert stamps(feed(sync, 'a', 100)) == {'a': 100}
    assert feed(sync, 'b', 60, now=300) is None  # older than the last frame
    assert stamps(feed(sync, 'b', 310)) == {'b': 310}


@pytest.mark.parametrize('camera_hz, wanted', [(5, 5), (10, 10), (15, 10), (30, 10), (100, 10), (10.1, 10)])
def test_rate_is_kept_on_average_for_any_camera(camera_hz, wanted):
    sync = make('a', rate_hz=10.0)
    frames = [frame for index in range(int(20 * camera_hz))
              if (frame := feed(sync, 'a', round(index * 1000 / camera_hz)))]
    assert wanted * 20 * 0.98 <= len(frames) <= wanted * 20 + 1
    gaps = np.diff([frame.observation.stamp_ns for frame in frames])
    assert gaps.min() >= 50 * MS
    assert [frame.observation.number for frame in frames] == list(range(1, len(frames) + 1))


def test_jitter_of_a_camera_with_the_set_rate_costs_no_frame():
    jitter = np.random.default_rng(0).integers(-20, 21, 200)
    sync = make('a', rate_hz=10.0)
    frames = [feed(sync, 'a', 1000 + 100 * index + int(offset)) for index, offset in enumerate(jitter)]
    assert all(frames)


def test_no_frame_at_once_after_one_without_its_turn():
    sync = make('a', rate_hz=10.0)
    feed(sync, 'a', 0)
    assert feed(sync, 'a', 20) is None
    assert sync.take(at(90)) is None  # a frame that late would be older than the next one of a steady camera


def test_system_clock_set_back_does_not_block():
    sync = make('a', rate_hz=10.0, stamps=StampPolicy.RECEIVE)
    feed(sync, 'a', 0, now=100_000)
    assert feed(sync, 'a', 0, now=50_000) is not None


def test_rate_counts_stamps_so_that_late_arrival_costs_no_frame():
    sync = make('a', rate_hz=10.0)
    arrivals = np.maximum.accumulate(np.arange(50) * 100 + np.random.default_rng(0).integers(0, 300, 50))
    assert all(feed(sync, 'a', 100 * index, now=int(arrival)) for index, arrival in enumerate(arrivals))


@pytest.mark.parametrize('threads', [0, 2])
def test_picture_that_does_not_decode_is_counted_and_the_others_wait_for_the_next(threads):
    def broken():
        raise ImageError(ImageFault.TRUNCATED, 'half a picture')

    sync = make('a', 'b', pool=ThreadPoolExecutor(threads) if threads else None)
    feed(sync, 'a', 0)
    assert feed(sync, 'b', 0, decode=broken) is None
    assert stamps(feed(sync, 'b', 20)) == {'a': 0, 'b': 20}
    assert sync.counters['b'][SyncEvent.UNUSABLE] == 1
    assert sync.faults['b'][ImageFault.TRUNCATED] == 1 and sync.last_fault['b'] == 'half a picture'


def test_cameras_of_a_frame_decode_side_by_side():
    both = threading.Barrier(2, timeout=10)  # breaks if one decodes after the other

    def decode():
        both.wait()
        return np.zeros((1, 1, 3), np.uint8)

    sync = make('a', 'b', pool=ThreadPoolExecutor(2))
    feed(sync, 'a', 0, decode=decode)
    assert stamps(feed(sync, 'b', 0, decode=decode)) == {'a': 0, 'b': 0}


def test_only_pictures_of_frames_are_decoded():
    decoded, frames = [], []
    sync = make('a', 'b', rate_hz=10.0)
    for index in range(300):  # 10 s at 30 Hz
        milliseconds = round(index * 1000 / 30)
        for name in 'ab':
            frames += [feed(sync, name, milliseconds,
                            decode=lambda: decoded.append(1) or np.zeros((1, 1, 3), np.uint8))]
    frames = [frame for frame in frames if frame]
    assert 98 <= len(frames) <= 101 and len(decoded) <= 2 * len(frames) + 2


def test_camera_that_lags_behind_still_pairs_and_costs_no_more_decoding():
    decoded = []
    sync = make('a', 'b', rate_hz=10.0)
    frames = []
    for index in range(300):  # b arrives half a second after a
        milliseconds = round(index * 1000 / 30)
        feed(sync, 'a', milliseconds, decode=lambda: decoded.append(1) or np.zeros((1, 1, 3), np.uint8))
        if index >= 15:
            frames += [feed(sync, 'b', round((index - 15) * 1000 / 30), now=milliseconds)]
    frames = [frame for frame in frames if frame]
    assert len(frames) >= 94 and all(len(set(stamps(frame).values())) == 1 for frame in frames)
    assert len(decoded) <= 2 * len(frames) + 2


def test_joints_are_those_of_the_frame_stamp():
    sync = make('a', joints=JointMerger(('j',)))
    for milliseconds in range(0, 100, 10):
        sync.add_joints(('j',), (float(milliseconds),), (0.5,), at(milliseconds), at(milliseconds))
    observation = feed(sync, 'a', 52, now=100).observation
    assert observation.joint_names == ('j',)
    assert observation.joint_positions.tolist() == [50.0] and observation.joint_velocities.tolist() == [0.5]


def test_frames_wait_for_joints_only_if_asked():
    assert feed(make('a', joints=JointMerger(('j',))), 'a', 10).joints.missing == ('j',)
    sync = make('a', joints=JointMerger(('j',)), require_joints=True)
    assert feed(sync, 'a', 10) is None
    sync.add_joints(('j',), (1.0,), (), at(11), at(12))
    assert sync.take(at(12)).observation.joint_names == ('j',)


def test_joint_states_of_the_future_or_without_stamp():
    sync = make('a', joints=JointMerger(('j',)), future_ns=0)
    assert sync.add_joints(('j',), (1.0,), (), at(20), at(10)) is SyncEvent.FUTURE
    assert sync.add_joints(('j',), (1.0,), (), 0, at(10)) is SyncEvent.RECEIVED
    assert sync.counters[JOINTS][SyncEvent.RECEIVE_TIME] == 1
    assert feed(sync, 'a', 10).joints.stamp_ns == at(10)


def test_memory_is_bounded():
    sync = make('a', 'b', queue=4)
    for milliseconds in range(1000):
        feed(sync, 'a', milliseconds)
    assert len(sync._queues['a'].waiting) == 4


def test_large_pictures_are_bounded_by_their_bytes_and_one_is_always_kept():
    sync = make('a', 'b', queue_bytes=1000)
    for milliseconds in range(10):
        sync.add_image('a', at(milliseconds), at(milliseconds), picture, size=400)
    assert [item.stamp_ns for item in sync._queues['a'].waiting] == [at(7), at(8), at(9)]
    sync.add_image('a', at(10), at(10), picture, size=10**9)  # the newest may be any size that it came in
    sync.add_image('a', at(11), at(11), picture, size=400)
    assert [item.stamp_ns for item in sync._queues['a'].waiting] == [at(11)]
    assert sync.counters['a'][SyncEvent.SKIPPED] == 11


def test_message_is_let_go_when_its_picture_is_decoded():
    class Message:
        pass

    message = Message()
    alive = weakref.ref(message)

    def decode(message=message):
        return picture()()

    sync = make('a')
    assert feed(sync, 'a', 10, decode=decode) is not None
    del message, decode
    assert alive() is None


def test_stamp_gap_tells_why_nothing_pairs():
    sync = make('a', 'b')
    feed(sync, 'a', 100, now=700)
    feed(sync, 'b', 700)
    assert sync.stamp_gap_ns() == 600 * MS


def test_camera_names_must_be_unique():
    with pytest.raises(ValueError, match='unique'):
        make('a', 'a')


def test_picture_that_takes_for_ever_to_decode_is_given_up(monkeypatch):
    monkeypatch.setattr(pairing, 'PATIENCE_SECONDS', 0.05)
    end = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        try:
            sync = make('a', 'b', pool=pool)
            feed(sync, 'a', 10, decode=end.wait)
            assert feed(sync, 'b', 11) is None
            assert sync.faults['a'] == {ImageFault.TOO_SLOW: 1} and 'not decoded after 0.05 s' in sync.last_fault['a']
            assert stamps(feed(sync, 'a', 20)) == {'a': 20, 'b': 11}
        finally:
            end.set()


@pytest.mark.parametrize('error', [KeyboardInterrupt(), MemoryError('no memory')])
def test_interrupted_decoding_is_not_waited_for(error):
    def decode():
        raise error

    picture = Picture('head', 1, '', decode)
    with pytest.raises(type(error)):
        picture.start(None)
    with pytest.raises(type(error)):
        picture.pixels()
