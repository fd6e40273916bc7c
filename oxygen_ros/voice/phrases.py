"""What can be said to the robot: phrases with slots, as a grammar for the recogniser and as a check of its result."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from oxygen_ros.errors import ConfigError
from oxygen_ros.simulation import language
from oxygen_ros.simulation.objects import COLOURS, SHAPES

_SLOT = re.compile(r'\{(\w*)\}')
_WORDS = re.compile(r"[a-z']+( [a-z']+)*")
WAKE_RULE = 'wake'


class Kind(enum.Enum):
    """What a phrase is for."""

    INSTRUCTION = 'instructions'
    QUESTION = 'questions'
    STOP = 'stop'


@dataclass(frozen=True)
class Phrases:
    """
    Phrases by kind, lower case words with slots in braces: 'point at the {object}'.

    :param templates: kind -> its phrases.
    :param slots: name -> the words that may stand in it.
    :param pronunciations: word -> its phones (ARPABET, as in CMUdict), for words that the dictionary lacks.
    :param wake_word: words that may come first, empty for none.
    :raises ConfigError: a phrase has other characters, or a slot that there is not; all of them in one line.
    """

    templates: Mapping[Kind, tuple[str, ...]]
    slots: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    pronunciations: Mapping[str, str] = field(default_factory=dict)
    wake_word: str = ''

    def __post_init__(self) -> None:
        wrong = []
        for kind, templates in self.templates.items():
            for template in templates:
                missing = [name for name in _SLOT.findall(template) if name not in self.slots]
                wrong += [f'{kind.value} {template!r} has a slot {name!r} that is not among {sorted(self.slots)}'
                          for name in missing]
                if not _WORDS.fullmatch(_SLOT.sub('x', template)):
                    wrong.append(f'{kind.value} {template!r} is not lower case words with single spaces')
        for name, fillings in self.slots.items():
            wrong += [f'slot {name!r}: {words!r} is not lower case words with single spaces' for words in fillings
                      if not _WORDS.fullmatch(words)]
            if not fillings:
                wrong.append(f'slot {name!r} is empty')
        if self.wake_word and not _WORDS.fullmatch(self.wake_word):
            wrong.append(f'wake word {self.wake_word!r} is not lower case words with single spaces')
        if not any(self.templates.values()):
            wrong.append('there is no phrase')
        if wrong:
            raise ConfigError('phrases: ' + '; '.join(wrong))

    def grammar(self) -> str:
        """Return the phrases as a JSGF grammar. The wake word is optional in it: who is not addressed is heard too."""
        lines = ['#JSGF V1.0;', 'grammar oxygen;']
        lines += [f'<{name}> = {" | ".join(fillings)};' for name, fillings in self.slots.items()]
        phrases = [_SLOT.sub(r'<\1>', template) for templates in self.templates.values() for template in templates]
        if self.wake_word:
            lines.append(f'<{WAKE_RULE}> = {self.wake_word};')
        lines.append(f'public <utterance> = {f"[<{WAKE_RULE}>] " if self.wake_word else ""}({" | ".join(phrases)});')
        return '\n'.join(lines) + '\n'

    def words(self) -> set[str]:
        """Return every word that can be said."""
        texts = [_SLOT.sub('', template) for templates in self.templates.values() for template in templates]
        texts += [words for fillings in self.slots.values() for words in fillings]
        return set(' '.join([*texts, self.wake_word]).split())

    def kind(self, text: str) -> Kind | None:
        """Return what a text is, without a wake word; None if it is no whole phrase."""
        for kind, templates in self.templates.items():
            for template in templates:
                pattern = _SLOT.sub(lambda slot: f'(?:{"|".join(self.slots[slot[1]])})', template)
                if re.fullmatch(pattern, text):
                    return kind
        return None

    def split_wake_word(self, text: str) -> tuple[bool, str]:
        """Return whether a text begins with the wake word (always, if there is none), and the text without it."""
        if not self.wake_word:
            return True, text
        rest = text.removeprefix(self.wake_word)
        return (True, rest.strip()) if rest != text and rest[:1] in ('', ' ') else (False, text)


def task_phrases(wake_word: str = '') -> Phrases:
    """Return what the small policy was trained on (simulation/language.py), and 'stop'."""
    questions = ('where is the {object}', 'is there a {object}', 'is the {object} {relation} the {object}',
                 'how many {counted} are there', 'what colour is the {shape}', 'what shape is the {colour} object',
                 'what is {extreme}')
    counted = ('objects', *(f'{shape}s' for shape in SHAPES), *(f'{colour} objects' for colour in COLOURS))
    return Phrases(
        templates={Kind.INSTRUCTION: (*(template.replace('{}', '{object}') for template in language.REACH_INSTRUCTIONS),
                                      *language.REST_INSTRUCTIONS),
                   Kind.QUESTION: questions, Kind.STOP: ('stop',)},
        slots={'object': language.NAMES, 'relation': tuple(language.RELATIONS), 'counted': counted, 'shape': SHAPES,
               'colour': tuple(COLOURS), 'extreme': ('leftmost', 'rightmost')},
        pronunciations={'leftmost': 'L EH F T M OW S T', 'rightmost': 'R AY T M OW S T'}, wake_word=wake_word)


def load_phrases(path: str, wake_word: str = '') -> Phrases:
    """
    Read phrases from a YAML file: instructions, questions, stop (lists), slots and pronunciations (mappings).

    :raises ConfigError: the file cannot be read, or does not hold such phrases.
    """
    try:
        content = yaml.safe_load(Path(path).expanduser().read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f'phrases {path!r} cannot be read: {error}') from error
    names = [*(kind.value for kind in Kind), 'slots', 'pronunciations']
    if not isinstance(content, dict) or set(content) - set(names):
        unknown = f', not {sorted(map(str, set(content) - set(names)))}' if isinstance(content, dict) else ''
        raise ConfigError(f'phrases {path!r} is a YAML file with {", ".join(names)}{unknown}')
    return Phrases(templates={kind: _texts(path, kind.value, content.get(kind.value) or []) for kind in Kind},
                   slots={name: _texts(path, name, words) for name, words in (content.get('slots') or {}).items()},
                   pronunciations={str(word): str(phones) for word, phones in
                                   (content.get('pronunciations') or {}).items()}, wake_word=wake_word)


def _texts(path: str, name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ConfigError(f'phrases {path!r}: {name} must be a list of texts (quote words such as "no" and "yes")')
    return tuple(value)
