"""Prompts in the turns of a chat, as Qwen's models read them."""

from __future__ import annotations

from oxygen_ros.models.byte_tokenizer import ByteTokenizer
from oxygen_ros.models.prompt_context import PromptContext, quoted_notes

TURN = ('<|im_start|>user\n', '<|im_end|>\n<|im_start|>assistant\n')
END = '<|im_end|>\n'


def chat_prompt(tokenizer: ByteTokenizer, words: str, context: PromptContext, turn: tuple[str, str] = TURN,
                end: str = END) -> list[int]:
    """
    Return the tokens of a turn of the user, behind the turns of the conversation; empty without words.

    Only the turns are markup. Words, answers and notes are encoded as plain text, which never gives control tokens.

    :param turn: markup in front of what the user says, and between that and the answer. :param end: behind an answer.
    """
    if not words:
        return []
    markup, encode = tokenizer.encode_markup, tokenizer.encode
    tokens: list[int] = []
    for exchange in context.exchanges:
        tokens += [*markup(turn[0]), *encode(exchange.question), *markup(turn[1]), *encode(exchange.answer),
                   *markup(end)]
    notes = quoted_notes(context.notes)
    return [*tokens, *markup(turn[0]), *encode(f'{notes}\n\n{words}' if notes else words), *markup(turn[1])]
