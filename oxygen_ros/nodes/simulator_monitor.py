"""
Node `demo_monitor` when the demo runs in the simulator: takes in what is so, and the pictures of it, as well.

Threads: as for `DemoMonitor`.
"""

from __future__ import annotations

import functools
import json
import time
from collections import deque
from typing import Any

import numpy as np
from rcl_interfaces.srv import SetParameters
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import Image
from std_msgs.msg import String

from oxygen_ros.demo.film import Film
from oxygen_ros.demo.ledger import Ledger
from oxygen_ros.demo.lines import Wish, read_line
from oxygen_ros.demo.record import Instruction, Question, Record, Text
from oxygen_ros.msg import MemoryEntry, TextChunk
from oxygen_ros.nodes.conversion import time_from_msg
from oxygen_ros.nodes.demo_monitor import QUEUE, DemoMonitor
from oxygen_ros.robot.robot_file import load_robot
from oxygen_ros.simulation.language import read_instruction
from oxygen_ros.simulation.objects import TableObject
from oxygen_ros.simulation.robot_model import CAMERAS
from oxygen_ros.simulation.simulation import Truth
from oxygen_ros.srv import QueryMemory, Stop

UTTERANCES = 'utterance'  # conversation of those who speak to the robot; see TextChunk.conversation
RECALLED = 3  # entries of an answer from memory


class SimulatorMonitor(DemoMonitor):
    """
    Watches the nodes while entered as a context manager.

    :param ledger: judges what it sees. :param film: keeps the pictures.
    """

    def __init__(self, record: Record, nodes: tuple[str, ...], ledger: Ledger, film: Film) -> None:
        super().__init__(record, nodes)
        self._ledger, self._film = ledger, film
        self._questions: dict[int, tuple[int, Question]] = {}  # request -> number of the question, question
        self._utterances: deque[str] = deque(maxlen=8)  # what others have asked aloud

    @property
    def services_ready(self) -> bool:
        """Whether all services have been found."""
        return super().services_ready and self._stop_client.service_is_ready()

    def stop(self) -> None:
        """Make the robot hold still until the next instruction."""
        def take(response: Stop.Response) -> None:
            self._ledger.stop(response.message)

        self._call(self._stop_client, Stop.Request(reason='the demo was told to'), take)

    def recall(self, words: str) -> None:
        """Ask memory for the newest notes that hold all the words."""
        def take(response: QueryMemory.Response) -> None:
            if response.success:
                self._ledger.recalled(words, [(entry.text, entry.count, time_from_msg(entry.header.stamp))
                                              for entry in response.entries])
            else:
                self._ledger.inform(f'memory cannot be read: {response.message}')

        self._call(self._query_client, QueryMemory.Request(words=words, limit=RECALLED), take)

    def change_scene(self, seed: int) -> None:
        """Put another scene on the table, and the robot at rest."""
        def take(response: SetParameters.Response) -> None:
            result = response.results[0]
            self._ledger.conclude()
            self._ledger.inform(f'scene {seed}' if result.successful else f'refused: {result.reason}')

        self._call(self._scene_client, SetParameters.Request(
            parameters=[Parameter('seed', value=seed).to_parameter_msg()]), take)

    def _open(self, node: Node) -> None:
        super()._open(node)
        self._scene_client = node.create_client(SetParameters, 'simulator/set_parameters')
        self._stop_client = node.create_client(Stop, 'stop')
        node.create_subscription(String, 'truth', self._take_truth, QUEUE)
        node.create_subscription(String, 'instruction', self._take_instruction, QUEUE)
        for topic in ('utterance', 'heard'):  # the latter from the node `hear`
            node.create_subscription(String, topic, self._take_utterance, QUEUE)
        node.create_subscription(Image, 'view', self._take_view, qos_profile_sensor_data)
        topics = load_robot('openarm').cameras
        for camera in CAMERAS:
            node.create_subscription(Image, topics[camera], functools.partial(self._take_camera, camera),
                                     qos_profile_sensor_data)

    def _take_truth(self, message: String) -> None:
        stamp_ns, truth = truth_from_dict(json.loads(message.data))
        with self.record.lock:
            self._ledger.take_truth(stamp_ns, truth, time.monotonic())

    def _take_instruction(self, message: String) -> None:
        """Others, such as the node `hear`, tell the robot what to do."""
        with self.record.lock:
            self._ledger.instructed(message.data)

    def _take_utterance(self, message: String) -> None:
        """Others talk to the robot. What is an instruction comes on its own topic as well."""
        if read_line(message.data).wish is not Wish.STOP and not read_instruction(message.data)[0]:
            with self.record.lock:
                self._utterances.append(message.data)

    def _take_view(self, message: Image) -> None:
        self._film.view(time_from_msg(message.header.stamp), _pixels(message))

    def _take_camera(self, camera: str, message: Image) -> None:
        self._film.camera(camera, _pixels(message))

    def _take_text(self, message: TextChunk, now: float) -> None:
        super()._take_text(message, now)
        text = self.record.texts[message.request_id]
        if text.finish and text.task == 'speech':
            self._ledger.said(text.text.strip(), text.finish, text.stamp_ns)
        elif text.finish and text.task == 'answer':
            if message.conversation == UTTERANCES and self._utterances:
                self._answered_aloud(text, self._utterances.popleft())
            self._answered(text)

    def _take_note(self, message: MemoryEntry, now: float) -> None:
        super()._take_note(message, now)
        self._ledger.noted(message.text, time_from_msg(message.header.stamp), new=message.count == 1)

    def _instructed(self, instruction: Instruction) -> None:
        if instruction.accepted:
            self._ledger.instructed(instruction.instruction)
        else:
            self._ledger.inform(f'refused: {instruction.message}')

    def _asked(self, question: Question) -> None:
        if not question.accepted:
            self._ledger.inform(f'refused: {question.message}')
            return
        self._questions[question.request_id] = self._ledger.asked(question.question), question
        text = self.record.answer_of(question)
        if text is not None and text.finish:
            self._answered(text)

    def _answered(self, text: Text) -> None:
        """An answer has ended. It counts when the question it belongs to is known."""
        if text.request_id in self._questions:
            number, question = self._questions.pop(text.request_id)
            self._ledger.answered(number, question.question, text.text.strip(), text.finish, text.stamp_ns)

    def _answered_aloud(self, text: Text, question: str) -> None:
        """An answer to an utterance has ended."""
        self._ledger.answered(self._ledger.asked(question), question, text.text.strip(), text.finish, text.stamp_ns)


def truth_from_dict(values: dict[str, Any]) -> tuple[int, Truth]:
    """Read a message of the topic `truth`, as `truth_to_dict` makes it; returns its stamp too."""
    return values['stamp_ns'], Truth(
        tuple(TableObject.from_dict(item) for item in values['objects']),
        {arm: np.array(tip) for arm, tip in values['fingertips'].items()}, np.array(values['joints']),
        values['from_rest'])


def _pixels(message: Image) -> np.ndarray:
    """Return a picture of the simulator, uint8 [height, width, 3] RGB."""
    return np.frombuffer(message.data, np.uint8).reshape(message.height, message.width, 3)
