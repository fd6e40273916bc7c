"""The video of the demo: what is in it can be read back."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from demo_truth import SECOND
from PIL import Image

from oxygen_ros.demo import film as film_module
from oxygen_ros.demo.events import Event, Kind, Verdict
from oxygen_ros.demo.film import Film
from oxygen_ros.demo.subtitles import HEIGHT, Subtitles, rows_at

SIZE = (880, 480 + HEIGHT)
EVENTS = [Event(2 * SECOND, Kind.TOLD, 'go to the red cube'), Event(3 * SECOND, Kind.SAID, 'i rest', Verdict.FALSE)]


def make_film(frames: int = 12) -> Film:
    """Return a film of a scene that gets brighter, ten pictures a second from 1 s on."""
    film = Film(10.0)
    for number in range(frames):
        film.camera('head', np.full((112, 112, 3), (0, 200, 0), np.uint8))
        film.view(SECOND + number * SECOND // 10, np.full((480, 640, 3), 10 * number, np.uint8))
    return film


def test_the_video_has_every_picture_with_the_cameras_and_a_place_for_subtitles(tmp_path):
    written = make_film().write(tmp_path, EVENTS, Subtitles(['title']))
    assert (written.path.name, written.frames, written.rate) == ('demo.mp4', 12, 10.0)
    assert (written.width, written.height) == SIZE and written.to_dict()['seconds'] == 1.2
    video = cv2.VideoCapture(str(written.path))
    pictures = []
    while (read := video.read())[0]:
        pictures.append(read[1])
    assert len(pictures) == 12 and pictures[0].shape == (SIZE[1], SIZE[0], 3)
    assert video.get(cv2.CAP_PROP_FPS) == pytest.approx(10)
    assert [picture[240, 320].mean() for picture in pictures] == pytest.approx([10 * n for n in range(12)], abs=6)
    assert pictures[0][100, 760] == pytest.approx([0, 200, 0], abs=12)


def test_subtitles_appear_when_it_happens_and_not_before(tmp_path):
    written = make_film(25).write(tmp_path, EVENTS, Subtitles(['title']))
    video = cv2.VideoCapture(str(written.path))
    lines = [video.read()[1][480:] for _ in range(25)]
    told, said = ([float((line[top:top + 24, 84:300] > 150).sum()) for line in lines] for top in (10, 58))
    assert max(told[:10]) == 0 and min(told[10:]) > 100
    assert max(said[:20]) == 0 and min(said[20:]) > 50


def test_what_was_before_the_beginning_is_left_out(tmp_path):
    film = make_film()
    assert film.write(tmp_path, (), Subtitles(['title']), since_ns=2 * SECOND).frames == 2
    assert film.write(tmp_path, (), Subtitles(['title']), since_ns=9 * SECOND) is None


def test_a_long_run_keeps_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(film_module, 'LONGEST', 1)
    assert make_film(15).write(tmp_path, (), Subtitles(['title']), since_ns=0).frames == 10


def test_without_an_encoder_it_is_a_gif_and_says_so(tmp_path, monkeypatch):
    class NoWriter:
        def __init__(self, *_):
            pass

        def isOpened(self):
            return False

    monkeypatch.setattr(film_module.cv2, 'VideoWriter', NoWriter)
    written = make_film().write(tmp_path, EVENTS, Subtitles(['title'], 'random weights'))
    assert written.path.name == 'demo.gif' and 'GIF' in written.form and not (tmp_path / 'demo.mp4').exists()
    with Image.open(written.path) as gif:
        assert (gif.n_frames, gif.size) == (12, (written.width, written.height))
        assert gif.info['duration'] == 100


def test_an_answer_is_shown_with_its_question_only():
    events = [Event(1, Kind.ASKED, 'a', number=0), Event(2, Kind.ANSWERED, 'yes', number=0),
              Event(3, Kind.ASKED, 'b', number=1), Event(4, Kind.ASKED, 'c', number=2),
              Event(5, Kind.ANSWERED, 'no', number=1), Event(6, Kind.ANSWERED, 'two', number=2)]

    def shown(time_ns):
        return [event.text for label, event in rows_at(time_ns, events)[3:5] if event]

    assert [shown(time_ns) for time_ns in range(7)] == [[], ['a'], ['a', 'yes'], ['b'], ['c'], ['c'], ['c', 'two']]


def test_what_came_of_an_instruction_goes_with_it_and_a_recalled_note_gives_way_to_the_newest():
    events = [Event(1, Kind.TOLD, 'a'), Event(2, Kind.DID, 'done'), Event(3, Kind.NOTED, 'new'),
              Event(4, Kind.RECALLED, 'old'), Event(5, Kind.TOLD, 'b')]
    assert rows_at(4, events)[1][1].text == 'done' and rows_at(5, events)[1][1] is None
    assert rows_at(4, events)[-1] == ('recalled', events[3])
    assert rows_at(4 + 6 * SECOND, events)[-1] == ('noted', events[2])


def test_a_long_line_is_cut_to_the_width():
    subtitles = Subtitles(['title'])
    events = [Event(0, Kind.NOTED, 'red cube near left, ' * 20)]
    picture = subtitles.below(np.zeros((480, 880, 3), np.uint8), 1, events)
    assert picture.shape == (SIZE[1], SIZE[0], 3)
    assert not (picture[480:, -8:] > 100).any()
