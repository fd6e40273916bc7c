"""
Node `speak`: says with a voice what the model answers and narrates. Optional: needs espeak-ng.

Threads: the executor makes lines of pieces of text; a thread of its own speaks them, which takes its time.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.qos_overriding_options import QoSOverridingOptions
from std_msgs.msg import Bool, String

from oxygen_ros.msg import TextChunk
from oxygen_ros.nodes.bool_state import HOLDS, LATCHED, BoolState
from oxygen_ros.nodes.counts_report import CountsReport
from oxygen_ros.nodes.mailbox import Mailbox
from oxygen_ros.nodes.parameters import declare_parameters
from oxygen_ros.nodes.remote_text import shown
from oxygen_ros.nodes.runner import add_node_arguments, run_node
from oxygen_ros.parameters import NodeParameter
from oxygen_ros.voice.lines import Ending, Line, LineQueue
from oxygen_ros.voice.speaker import Output, SoundDevice, Speaker, WavFolder
from oxygen_ros.voice.spoken_texts import SpokenTexts, TextEnd
from oxygen_ros.voice.synthesiser import Synthesiser

PARAMETERS = (
    NodeParameter('tasks', ('answer', 'speech'), 'Tasks whose texts are spoken; speech is the narration.',
                  choices=('answer', 'speech')),
    NodeParameter('voice', 'en-us', 'Voice of espeak-ng, for example en (British) or en-us+f3.'),
    NodeParameter('words_per_minute', 160, 'Speed of the voice.', 80, 450),
    NodeParameter('pitch', 50, 'Pitch of the voice.', 0, 99),
    NodeParameter('loudspeaker', '', 'Sound device: a part of its name, or its number. Empty: that of the system.'),
    NodeParameter('wav_folder', '', 'Folder for wav files, one per line, instead of sound. Empty: sound.'),
    NodeParameter('queue', 8, 'Most lines that wait to be spoken; beyond it the oldest go, narration first.', 1, 100),
    NodeParameter('repeat_after', 30.0, 'Seconds in which the narration does not say the same line again.', 0.0,
                  3600.0),
)

ENDS = {TextChunk.NOT_FINISHED: None, TextChunk.STOP: TextEnd.WHOLE, TextChunk.LENGTH: TextEnd.WHOLE,
        TextChunk.CANCELLED: TextEnd.TAKEN_BACK, TextChunk.SUPERSEDED: TextEnd.TAKEN_BACK,
        TextChunk.REPETITION: TextEnd.TAKEN_BACK}  # the others: TextEnd.CUT
LONGEST = 2000  # characters of a line of another node


class SpeakNode(Node):
    """
    Wires texts to a voice.

    :param node_arguments: handed on to rclpy's Node.
    :raises ConfigError: a parameter is wrong, espeak-ng or the sound device is missing.
    """

    def __init__(self, **node_arguments: Any) -> None:
        super().__init__('speak', **node_arguments)
        values = declare_parameters(self, PARAMETERS)
        synthesis = Synthesiser(values['voice'], values['words_per_minute'], values['pitch'])
        output: Output = WavFolder(values['wav_folder']) if values['wav_folder'] else SoundDevice(values['loudspeaker'])
        self._queue = LineQueue(values['queue'])
        self._texts = SpokenTexts(self._queue, values['tasks'], values['repeat_after'])
        self._problem = ''
        self._mailbox = Mailbox(self)
        self._speaking = BoolState(self, 'speaking')
        options = {'qos_overriding_options': QoSOverridingOptions.with_default_policies()}
        self.create_subscription(TextChunk, 'speech', self._text, QoSProfile(depth=100), **options)
        self.create_subscription(String, 'say', self._say, QoSProfile(depth=10), **options)
        self.create_subscription(Bool, 'hearing', self._somebody_speaks, LATCHED)
        CountsReport(self, 'voice', self._figures, lambda: self._problem)
        self._speaker = Speaker(self._queue, synthesis, output, self._spoke, self._ended)
        self.get_logger().info(f'speaking {", ".join(values["tasks"]) or "only what comes on say"}')

    def destroy_node(self) -> None:
        """Stop speaking, then destroy the node."""
        self._speaker.close()
        super().destroy_node()

    def _text(self, piece: TextChunk) -> None:
        self._texts.push(time.monotonic(), piece.request_id, piece.task, piece.conversation, piece.delta,
                         piece.sequence == 0, ENDS.get(piece.finish_reason, TextEnd.CUT))

    def _say(self, message: String) -> None:
        if text := message.data.strip():
            self._queue.put(Line(text[:LONGEST], urgent=True))

    def _spoke(self, speaking: bool) -> None:
        self._mailbox.put(lambda: self._speaking.set(speaking))

    def _somebody_speaks(self, message: Bool) -> None:
        self._queue.hold(HOLDS if message.data else 0.0)

    def _ended(self, line: Line, ending: Ending, problem: str) -> None:
        self._mailbox.put(lambda: self._report(line, ending, problem))

    def _report(self, line: Line, ending: Ending, problem: str) -> None:
        self.get_logger().debug(f'{ending.value}: {shown(line.text)}')
        if problem and not self._problem:
            self.get_logger().error(f'the voice fails: {problem}')
        elif self._problem and not problem:
            self.get_logger().info('the voice works again')
        self._problem = problem

    def _figures(self) -> dict[str, object]:
        return {**{ending.value: self._queue.counts[ending] for ending in Ending}, 'repeated': self._texts.repeated}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `oxygen_ros speak`."""
    parser.add_argument('--wav-folder', metavar='FOLDER', help='write wav files instead of making sound')
    add_node_arguments(parser, PARAMETERS)


def main(arguments: argparse.Namespace) -> int:
    """Run the node."""
    if arguments.wav_folder:
        arguments.param.append(f'wav_folder:={arguments.wav_folder}')
    return run_node(SpeakNode, arguments)
