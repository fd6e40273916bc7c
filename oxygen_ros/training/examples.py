"""Frames of a dataset as the training needs them: tokens instead of texts, normalised numbers instead of radians."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from oxygen_ros.models.tiny import TinyModel
from oxygen_ros.robot.layout import Layout
from oxygen_ros.simulation.dataset import Dataset
from oxygen_ros.simulation.language import draw_questions
from oxygen_ros.simulation.objects import TableObject

NEW_QUESTIONS = 10  # that are drawn about a frame, more than there is room for
UNCLEAR = 0.5  # weight of a text that is a matter of opinion


@dataclass(frozen=True)
class Text:
    """
    A branch: prompt, then what the model shall say.

    :param task: 'answer', 'speech' or 'memory'. :param kind: of question, else the task.
    :param prompt, reply: token ids; the reply ends with eos. :param clear: whether there is one right answer.
    """

    task: str
    kind: str
    prompt: tuple[int, ...]
    reply: tuple[int, ...]
    clear: bool

    def __len__(self) -> int:
        return len(self.prompt) + len(self.reply) - 1  # nothing follows the last token


@dataclass(frozen=True)
class Order:
    """
    What the robot is told in a frame, and what it does and says then.

    :param prefix: tokens of the prefix text. :param line: the spoken line.
    :param actions: float32 [horizon, joints], normalised.
    """

    kind: str
    prefix: tuple[int, ...]
    line: Text
    actions: np.ndarray


@dataclass(frozen=True)
class Example:
    """One frame; arrays as in `dataset.Frame`."""

    images: np.ndarray
    orders: tuple[Order, ...]
    questions: tuple[Text, ...]
    note: Text
    patch_class: np.ndarray
    patch_offset: np.ndarray


class Encoder:
    """
    Turns frames of a dataset into examples for one model and one robot.

    :param model: gives prompts and tokens; its weights do not matter.
    :param layout: with the statistics that the model is trained with.
    """

    def __init__(self, model: TinyModel, layout: Layout, joints: Sequence[str]) -> None:
        self._model, self._layout, self._joints = model, layout, tuple(joints)
        self._eos = model.tokenizer.control('eos')
        self._encode = lru_cache(maxsize=1 << 16)(lambda text: tuple(model.tokenizer.encode(text)))

    def text(self, task: str, reply: str, clear: bool, question: str = '', kind: str = '') -> Text:
        """Return a branch."""
        prompt = tuple(self._model.branch_prompt(task, question))
        return Text(task, kind or task, prompt, (*self._encode(reply), self._eos), clear)

    def example(self, dataset: Dataset, index: int, random: np.random.Generator | None = None) -> Example:
        """
        Return a frame of a dataset.

        :param random: draws new questions about the scene each time; None takes those of the dataset.
        """
        frame = dataset[index]
        state = self._layout.encode_state(self._joints, frame.joints)
        columns = [self._joints.index(name) for name in self._layout.actions]
        orders = tuple(Order(
            task.kind, tuple(self._model.prefix_tokens(task.instruction, state)),
            self.text('speech', task.line, task.line_clear),
            self._layout.encode_actions(task.chunk[:, columns], self._joints, frame.joints).astype(np.float32),
        ) for task in frame.tasks)
        asked = frame.questions
        if random is not None:
            asked = draw_questions(random, [TableObject.from_dict(item) for item in frame.objects], NEW_QUESTIONS)
        questions = tuple(self.text('answer', q.answer, q.clear, q.question, q.kind) for q in asked)
        return Example(frame.images, orders, questions, self.text('memory', frame.note.text, frame.note.clear),
                       frame.patch_class, frame.patch_offset)
