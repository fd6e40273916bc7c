"""Keeps out of a text what was never meant to be read: thinking between tags, and names of special tokens."""

from __future__ import annotations

import re

THINKING = ('think', 'thinking', 'thought', 'reasoning', 'cot')
LONGEST = 40  # characters of a tag

_NAMES = '|'.join(THINKING)
_TAG = re.compile(
    rf'<(?P<close>/)?(?P<thinking>{_NAMES})>'
    r'|<\|[^\s<>|]{1,32}\|>'                                  # <|im_end|>
    r'|<(?:start|end)_of_\w{1,20}>|</?(?:s|bos|eos|pad|unk|mask)>'   # of Gemma, Llama
    r'|<(?:loc|seg|unused|extra_id_)\d{1,4}>', re.IGNORECASE)    # of PaliGemma, T5
_BEGUN = re.compile(r'<(?:/?\w*|\|[^\s<>|]*\|?)\Z')  # may still become a tag
_THINKING_BEGUN = tuple(f'<{slash}{name}' for name in THINKING for slash in ('', '/'))


class MarkupFilter:
    """
    Filters a text that comes in pieces, however they cut it.

    What stands between a thinking tag and its end is left out, up to the end of the text if that never comes. A `<`
    that begins no tag comes through. NUL, which would cut a message off, becomes U+FFFD.
    """

    def __init__(self) -> None:
        self._held = ''  # may be the beginning of a tag
        self._close: re.Pattern[str] | None = None  # the tag that thinking ends with
        self._said = self._removed = False

    def push(self, text: str) -> str:
        """Take in a piece and return what can be handed on."""
        text = self._held + text.replace('\0', '\ufffd')
        kept = []
        while True:
            if self._close is not None:
                end = self._close.search(text)
                if end is None:
                    self._held = text[-LONGEST:]
                    break
                text, self._close = text[end.end():], None
            start = text.find('<')
            if start < 0:
                kept.append(text)
                self._held = ''
                break
            kept.append(text[:start])
            text = text[start:]
            tag = _TAG.match(text)
            if tag is not None:
                text, self._removed = text[tag.end():], True
                if tag['thinking'] and not tag['close']:
                    self._close = re.compile(f'</{tag["thinking"]}>', re.IGNORECASE)
            elif len(text) <= LONGEST and _BEGUN.match(text):
                self._held = text
                break
            else:
                kept.append('<')
                text = text[1:]
        return self._first(''.join(kept))

    def flush(self) -> str:
        """Return what is left at the end of the text; not the beginning of a tag, nor what stands behind one."""
        held, self._held = self._held, ''
        if self._close is not None or held.startswith('<|'):
            return ''
        begun = len(held) > 1 and any(tag.startswith(held.lower()) for tag in _THINKING_BEGUN)
        return '' if begun else self._first(held)

    def _first(self, text: str) -> str:
        """Drop the blanks between what was left out and the first word."""
        if self._removed and not self._said:
            text = text.lstrip()
        self._said |= bool(text.strip())
        return text
