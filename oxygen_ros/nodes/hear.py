"""
Node `hear`: understands spoken instructions and questions, and hands them to the model. Optional: needs PocketSphinx.

Threads: a thread of its own takes sound and recognises; the executor acts on what was heard.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from rclpy.client import Client
from rclpy.clock import Clock, ClockType
from rclpy.node import Node
from rclpy.task import Future
from std_msgs.msg import Bool, String

from oxygen_ros.nodes.bool_state import HOLDS, LATCHED, BoolState
from oxygen_ros.nodes.counts_report import CountsReport
from oxygen_ros.nodes.mailbox import Mailbox
from oxygen_ros.nodes.parameters import declare_parameters
from oxygen_ros.nodes.remote_text import shown
from oxygen_ros.nodes.runner import NodeFinished, add_node_arguments, run_node
from oxygen_ros.parameters import NodeParameter
from oxygen_ros.srv import Ask, Stop
from oxygen_ros.voice import self_test
from oxygen_ros.voice.audio import BLOCK, Microphone, blocks, read_wav
from oxygen_ros.voice.listener import Listener
from oxygen_ros.voice.phrases import Kind, load_phrases, task_phrases
from oxygen_ros.voice.recogniser import MIN_CONFIDENCE, RATE, Heard, Outcome, Recogniser

PARAMETERS = (
    NodeParameter('wav_files', (), 'Wav files to hear one after the other instead of the microphone; the node ends '
                  'with the last.'),
    NodeParameter('real_time', True, 'Hear wav files at the speed of speech; otherwise as quick as they are '
                  'recognised.'),
    NodeParameter('microphone', '', 'Sound device: a part of its name, or its number. Empty: that of the system.'),
    NodeParameter('phrases', '', 'YAML file of what can be said. Empty: what the small policy was trained on, and '
                  'stop.'),
    NodeParameter('wake_word', '', 'Words that an utterance must begin with, all but stop. Empty: none.'),
    NodeParameter('min_confidence', MIN_CONFIDENCE, 'Below it an utterance counts as not understood: log likelihood of '
                  'the words relative to that of any sounds, per frame of 10 ms.', -100.0, 0.0),
    NodeParameter('listen_while_speaking', False, 'Hear also while the robot speaks; needs a microphone that does not '
                  'hear the loudspeaker.'),
    NodeParameter('reply', '', 'What the robot says to an utterance that it did not understand. Empty: nothing.'),
)

CONVERSATION = 'utterance'  # that of people who speak to the robot
TAIL = 0.3                  # seconds that the room still sounds after the robot has spoken
SILENCE = 0.9               # seconds after a wav file
DISCOVERY = 5.0             # seconds that wav files wait at most for the inference node
LAST_CALLS = 5.0            # seconds that the node waits for responses before it ends with the last wav file


class HearNode(Node):
    """
    Wires sound to instructions and questions.

    :param node_arguments: handed on to rclpy's Node.
    :raises ConfigError: a parameter is wrong, PocketSphinx, a file or the microphone is missing.
    """

    def __init__(self, **node_arguments: Any) -> None:
        super().__init__('hear', **node_arguments)
        self._values = values = declare_parameters(self, PARAMETERS)
        phrases = (load_phrases(values['phrases'], values['wake_word']) if values['phrases']
                   else task_phrases(values['wake_word']))
        self._listener = Listener(Recogniser(phrases, values['min_confidence']))
        self._sounds = [read_wav(path) for path in values['wav_files']]
        self._microphone = None if values['wav_files'] else Microphone(values['microphone'])
        self._mailbox = Mailbox(self)
        self._refused = 0
        self._cpu, self._utterances = 0.0, 0
        self._calls: list[Future] = []
        self._deaf_until = 0.0  # of time.monotonic
        self._closing = threading.Event()
        self._instruction = self.create_publisher(String, 'instruction', LATCHED)
        self._heard = self.create_publisher(String, 'heard', 10)
        self._say = self.create_publisher(String, 'say', 10)
        self._hearing = BoolState(self, 'hearing')
        self._ask = self.create_client(Ask, 'ask')
        self._stop = self.create_client(Stop, 'stop')
        self.create_subscription(Bool, 'speaking', self._robot_speaks, LATCHED)
        CountsReport(self, 'speech', self._figures, self._problem)
        self._thread = threading.Thread(target=self._listen, name='hear', daemon=True)
        self._thread.start()
        where = f'{len(self._sounds)} wav files' if self._sounds else 'the microphone'
        wake = f', after the words {values["wake_word"]!r}' if values['wake_word'] else ''
        self.get_logger().info(f'listening to {where} for {len(phrases.words())} words{wake}')

    @property
    def counts(self) -> Counter[Outcome]:
        """How many utterances had which outcome."""
        return self._listener.counts

    def destroy_node(self) -> None:
        """Stop listening, then destroy the node."""
        self._closing.set()
        if self._microphone is not None:
            self._microphone.close()
        self._thread.join(timeout=2.0)
        super().destroy_node()

    # -- the thread that listens -------------------------------------------------------------------------------------

    def _listen(self) -> None:
        listener, deaf, speech = self._listener, False, False
        try:
            for block in self._microphone or self._recorded():
                if self._closing.is_set():
                    return
                heard = None
                was_deaf, deaf = deaf, time.monotonic() < self._deaf_until
                if not deaf:
                    heard = listener.push(block)
                elif not was_deaf:
                    listener.reset()
                if listener.in_speech != speech:
                    speech = listener.in_speech
                    self._mailbox.put(lambda speech=speech: self._hearing.set(speech))
                if heard is not None:
                    self._mailbox.put(lambda heard=heard: self._act(heard))
            if self._microphone is None:
                self._mailbox.put(self._finish)
        except Exception as error:  # noqa: B902 - without ears the node ends, and says why
            self._mailbox.put(lambda error=error: _raise(error))

    def _recorded(self) -> Iterator[np.ndarray]:
        """Give the blocks of the wav files, when there is somebody to hand them to."""
        end = time.monotonic() + DISCOVERY
        while not (self._ask.service_is_ready() and self._instruction.get_subscription_count()) \
                and time.monotonic() < end and not self._closing.wait(0.05):
            pass
        due = time.monotonic()
        for sound in self._sounds:
            for block in blocks(sound, SILENCE):
                due += BLOCK / RATE
                if self._values['real_time'] and self._closing.wait(max(0.0, due - time.monotonic())):
                    return
                yield block

    # -- in the executor ---------------------------------------------------------------------------------------------

    def _robot_speaks(self, message: Bool) -> None:
        if not self._values['listen_while_speaking']:
            self._deaf_until = time.monotonic() + (HOLDS if message.data else TAIL)

    def _act(self, heard: Heard) -> None:
        self._cpu += heard.cpu_seconds
        self._utterances += 1
        if heard.kind is None:
            guess = f' (perhaps {heard.text!r})' if heard.text else ''
            self.get_logger().info(f'{heard.outcome.value}: {heard.seconds:.1f} s of speech{guess}')
            if self._values['reply'] and heard.outcome is not Outcome.NOT_ADDRESSED and not self._values['wake_word']:
                self._say.publish(String(data=self._values['reply']))
            return
        self.get_logger().info(f'heard {heard.text!r} (confidence {heard.confidence:.1f})')
        self._heard.publish(String(data=heard.text))
        if heard.kind is Kind.INSTRUCTION:
            self._instruction.publish(String(data=heard.text))
        elif heard.kind is Kind.QUESTION:
            self._call(self._ask, Ask.Request(question=heard.text, temperature=-1.0, conversation=CONVERSATION))
        else:
            self._call(self._stop, Stop.Request(reason='somebody said stop', cancel_text=True))

    def _call(self, client: Client, request: Ask.Request | Stop.Request) -> None:
        name = client.srv_name
        if not client.service_is_ready():
            self._refused += 1
            self.get_logger().error(f'nobody offers {name}: does the inference node run, in the same namespace?')
            return

        def done(future: Future) -> None:
            self._calls.remove(future)
            response = future.result()
            if not (response.accepted if isinstance(response, Ask.Response) else response.stopped):
                self._refused += 1
                self.get_logger().warning(f'{name} refuses: {shown(response.message)}')

        future = client.call_async(request)
        self._calls.append(future)
        future.add_done_callback(done)

    def _finish(self) -> None:
        """End with the last wav file, once the calls have been answered."""
        end = time.monotonic() + LAST_CALLS

        def look() -> None:
            if not self._calls or time.monotonic() > end:
                self.get_logger().info(', '.join(f'{self.counts[outcome]} {outcome.value}' for outcome in Outcome))
                raise NodeFinished(0)

        self.create_timer(0.2, look, clock=Clock(clock_type=ClockType.STEADY_TIME))

    def _figures(self) -> dict[str, object]:
        mean = f'{1000 * self._cpu / self._utterances:.0f}' if self._utterances else ''
        return {**{outcome.value: self.counts[outcome] for outcome in Outcome}, 'refused': self._refused,
                'cpu_ms_per_utterance': mean, 'lost_blocks': self._microphone.lost if self._microphone else 0}

    def _problem(self) -> str:
        lost = self._microphone.lost if self._microphone else 0
        return f'{lost} blocks of sound were lost: the machine is too slow' if lost else ''


def _raise(error: Exception) -> None:
    raise error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `oxygen_ros hear`."""
    parser.add_argument('--wav', nargs='+', metavar='FILE', help='hear these wav files instead of the microphone')
    self_test.add_arguments(parser)
    add_node_arguments(parser, PARAMETERS)


def main(arguments: argparse.Namespace) -> int:
    """Run the node, or the test of voice and recogniser on each other."""
    if arguments.self_test:
        return self_test.main(arguments)
    if arguments.wav:
        arguments.param.append(f'wav_files:={",".join(arguments.wav)}')
    return run_node(HearNode, arguments)
