"""Loads the model that is to be measured, and reads options of loading and of the engine from a command line."""

from __future__ import annotations

import argparse
import dataclasses
import enum
from collections.abc import Mapping
from typing import get_type_hints

from oxygen_ros.engine.config import EngineConfig
from oxygen_ros.errors import ConfigError
from oxygen_ros.models.interface import VLAModel
from oxygen_ros.models.registry import DTYPES, LoadOptions, load_model, read_model_file

# These have arguments of their own, or follow from the workload.
FIXED = {'checkpoint', 'dtype', 'device', 'seed', 'progress', 'admit', 'scheduler', 'max_branches', 'branch_tokens',
         'denoise_steps', 'max_frame_age'}


def load(arguments: argparse.Namespace) -> VLAModel:
    """Return the model of a command line."""
    options = LoadOptions(arguments.checkpoint, DTYPES[arguments.dtype], arguments.device, arguments.seed)
    return load_model(read_model_file(arguments.model), dataclasses.replace(options, **read_options(
        arguments.options)[0]))


def read_options(words: list[str]) -> tuple[dict[str, object], dict[str, object]]:
    """
    Return fields of `LoadOptions` and of `EngineConfig` from words like `name=value`.

    :raises ConfigError: there is no such option, or the value is none of it.
    """
    loading, engine = _fields(LoadOptions), _fields(EngineConfig)
    results: tuple[dict[str, object], dict[str, object]] = {}, {}
    for word in words:
        name, _, text = word.partition('=')
        if name not in {**loading, **engine}:
            raise ConfigError(f'option {name!r} is unknown: choose one of {sorted({**loading, **engine})}')
        for hints, result in zip((loading, engine), results):
            if name in hints:
                result[name] = _value(name, hints[name], text)
    return results


def _fields(kind: type) -> Mapping[str, object]:
    return {name: hint for name, hint in get_type_hints(kind).items() if name not in FIXED}


def _value(name: str, hint: object, text: str) -> object:
    try:
        if isinstance(hint, type) and issubclass(hint, enum.Enum):
            return hint(text)
        if hint is bool:
            return {'true': True, 'false': False}[text]
        return float(text) if 'float' in str(hint) else int(text) if 'int' in str(hint) else text
    except (KeyError, ValueError):
        raise ConfigError(f'option {name} cannot be {text!r}: it is {getattr(hint, "__name__", hint)}') from None
