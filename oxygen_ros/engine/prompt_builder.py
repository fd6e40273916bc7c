"""Makes the prompts of texts: within the room of a branch, with as much of the context as fits."""

from __future__ import annotations

from collections.abc import Sequence

from oxygen_ros.engine.requests import AdmissionError, Refusal, TextRequest
from oxygen_ros.models.interface import VLAModel
from oxygen_ros.models.prompt_context import NO_CONTEXT, ContextKind, Exchange, PromptContext

LONGEST_TOKEN = 32  # characters per token of a branch that a text may have before it is refused unread
# The same for a context, which is shortened instead of refused: what is beyond is left out without being tokenized.
LONGEST_TOKEN_OF_CONTEXT = 8


class PromptBuilder:
    """
    :param branch_tokens: most tokens of a prompt and its text.
    """

    def __init__(self, model: VLAModel, branch_tokens: int) -> None:
        self._model, self._most = model, branch_tokens

    def build(self, request: TextRequest, exchanges: Sequence[Exchange] = ()) -> tuple[list[int], str]:
        """
        Return the tokens of a prompt, and what was left out of it, in words; empty if nothing was.

        The context leaves room for the answer: the oldest exchanges are left out first, each as a whole, then the least
        relevant notes.

        :param exchanges: of the request's conversation, oldest first.
        :raises AdmissionError: even without a context the prompt does not fit, or none can be made of the text.
        """
        longest = LONGEST_TOKEN * self._most
        if len(request.text) > longest:  # never tokenized, for that takes long
            raise AdmissionError(Refusal.PROMPT_TOO_LONG, f'the text has {len(request.text)} characters, at most '
                                 f'{longest} are looked at: shorten it or raise branch_tokens')
        kinds = self._model.spec.context
        exchanges = list(exchanges) if ContextKind.CONVERSATION in kinds else []
        notes = list(request.notes) if ContextKind.MEMORY in kinds else []
        wanted = len(exchanges), len(notes)
        room = self._most - min(request.sampling.max_tokens, self._most // 2)
        while exchanges or notes:
            context = PromptContext(tuple(exchanges), tuple(notes))
            if _characters(context) <= LONGEST_TOKEN_OF_CONTEXT * self._most:
                prompt = self._prompt(request, context)
                if len(prompt) <= room:
                    return prompt, self._left_out(wanted, exchanges, notes)
            if exchanges:
                del exchanges[0]
            else:
                del notes[-1]
        prompt = self._prompt(request, NO_CONTEXT)
        if len(prompt) >= self._most:
            raise AdmissionError(Refusal.PROMPT_TOO_LONG, f'the prompt has {len(prompt)} tokens, a branch holds '
                                 f'{self._most}: shorten the text or raise branch_tokens')
        return prompt, self._left_out(wanted, exchanges, notes)

    def _prompt(self, request: TextRequest, context: PromptContext) -> list[int]:
        try:
            if context:
                return self._model.branch_prompt(request.task, request.text, context)
            return self._model.branch_prompt(request.task, request.text)
        except Exception as error:  # noqa: B902 - whatever a tokenizer raises, the other requests go on
            raise AdmissionError(Refusal.BAD_PROMPT, f'no prompt of task {request.task!r} can be made of this text: '
                                 f'{type(error).__name__}: {error}') from error

    def _left_out(self, wanted: tuple[int, int], exchanges: Sequence[Exchange], notes: Sequence[str]) -> str:
        lost = [f'the {number} {what}' for number, what in (
            (wanted[0] - len(exchanges), f'oldest of {wanted[0]} exchanges'),
            (wanted[1] - len(notes), f'least relevant of {wanted[1]} notes')) if number]
        return f'left out to fit into {self._most} branch_tokens: {" and ".join(lost)}' if lost else ''


def _characters(context: PromptContext) -> int:
    return (sum(len(exchange.question) + len(exchange.answer) for exchange in context.exchanges)
            + sum(map(len, context.notes)))
