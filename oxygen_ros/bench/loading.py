"""Loads the model that is to be measured."""

from __future__ import annotations

import argparse
import dataclasses
import enum
from typing import get_type_hints

from oxygen_ros.errors import ConfigError
from oxygen_ros.models.interface import VLAModel
from oxygen_ros.models.registry import DTYPES, LoadOptions, load_model, read_model_file

FIXED = ('checkpoint', 'dtype', 'device', 'seed', 'progress')  # have arguments of their own


def load(arguments: argparse.Namespace, **changes: object) -> VLAModel:
    """
    Return the model of a command line.

    :param changes: options of loading that differ from it.
    """
    options = LoadOptions(arguments.checkpoint, DTYPES[arguments.dtype], arguments.device, arguments.seed)
    options = dataclasses.replace(options, **{**load_options(arguments.options), **changes})
    return load_model(read_model_file(arguments.model), options)


def load_options(words: list[str]) -> dict[str, object]:
    """
    Return fields of `LoadOptions` from words like `name=value`.

    :raises ConfigError: there is no such option, or the value is none of it.
    """
    hints = {name: hint for name, hint in get_type_hints(LoadOptions).items() if name not in FIXED}
    result: dict[str, object] = {}
    for word in words:
        name, _, text = word.partition('=')
        if name not in hints:
            raise ConfigError(f'option {name!r} is unknown: choose one of {sorted(hints)}')
        result[name] = _value(name, hints[name], text)
    return result


def _value(name: str, hint: object, text: str) -> object:
    try:
        if isinstance(hint, type) and issubclass(hint, enum.Enum):
            return hint(text)
        if hint is bool:
            return {'true': True, 'false': False}[text]
        return float(text) if 'float' in str(hint) else int(text) if 'int' in str(hint) else text
    except (KeyError, ValueError):
        raise ConfigError(f'option {name} cannot be {text!r}: it is {getattr(hint, "__name__", hint)}') from None
