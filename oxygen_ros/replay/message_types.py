"""Message types without ROS: those of ROS 2 and our own, through the type store of `rosbags`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from rosbags.interfaces import Nodetype
from rosbags.typesys import Stores, get_types_from_idl, get_types_from_msg, get_typestore
from rosbags.typesys.store import Typestore

from oxygen_ros.errors import BagError
from oxygen_ros.files import installation_prefixes, interface_files
from oxygen_ros.replay.bag import Topic
from oxygen_ros.replay.recorded import one_line

PACKAGE = 'oxygen_ros'


def own_types() -> dict:
    """Return the definitions of our own messages, from the installed msg/*.msg files."""
    types: dict = {}
    for name, file in interface_files('msg').items():
        types.update(get_types_from_msg(file.read_text(encoding='utf-8'), f'{PACKAGE}/msg/{name}'))
    return types


@cache
def type_store() -> Typestore:
    """Return the one type store: the types of ROS 2 Jazzy and our own. Takes 0.2 s the first time."""
    store = get_typestore(Stores.ROS2_JAZZY)
    store.register(own_types())
    return store


def definition_of(type_: str, store: Typestore | None = None) -> tuple[str, str]:
    """
    Return the whole definition of a type, with all types that it uses, and its hash (REP 2016).

    :raises KeyError: the type is not known.
    """
    store = store or type_store()
    if type_ not in store.fielddefs:
        raise KeyError(type_)
    return store.generate_msgdef(type_, ros_version=2)[0], store.hash_rihs01(type_)


def definition_of_installed(type_: str) -> tuple[str, str]:
    """
    Return definition and hash of a type that may be none of ours: from the .msg files of installed packages.

    :raises BagError: neither they nor our type store have it.
    """
    store = type_store()
    if type_ in store.fielddefs:
        return definition_of(type_)
    types: dict = {}
    missing = [type_]
    while missing:
        name = missing.pop()
        package, _, message = name.split('/')
        file = next((path for prefix in installation_prefixes()
                     if (path := prefix / 'share' / package / 'msg' / f'{message}.msg').is_file()), None)
        if file is None:
            raise BagError(f'no definition of type {name} is installed')
        types.update(get_types_from_msg(file.read_text(encoding='utf-8'), name))
        missing += [inner for inner in _used(types[name]) if inner not in types and inner not in store.fielddefs]
    own = get_typestore(Stores.EMPTY)
    own.register({**store.fielddefs, **types})
    return definition_of(type_, own)


def make(type_: str, **fields: Any) -> Any:
    """Return a message; fields that are not given have their defaults, as in ROS. Arrays are taken over as they are."""
    store = type_store()
    values = {name: fields.pop(name) if name in fields else _default(store, description)
              for name, description in store.fielddefs[type_][1]}
    if fields:
        raise TypeError(f'{type_} has no field {sorted(fields)}')
    return store.types[type_](**values)


def serialize(message: Any) -> bytes:
    """Return a message of `make` as CDR."""
    return bytes(type_store().serialize_cdr(message, message.__msgtype__))


def reader_of(topic: Topic) -> Callable[[bytes], Any]:
    """
    Return a function that reads the serialized messages of a recorded topic; it raises BagError for damaged ones.

    The definition stored in the recording decides; without a usable one, that of our type store.

    :raises BagError: the type is not known at all.
    """
    store = recorded_store(topic)

    def read(data: bytes) -> Any:
        try:
            return store.deserialize_cdr(data, topic.type)
        except Exception as error:  # noqa: B902 - damage shows as many kinds of error
            raise BagError(f'a message of {topic.name} is no {topic.type}: {one_line(error)}') from error

    return read


def recorded_store(topic: Topic) -> Typestore:
    """
    Return a store that holds the type of a recorded topic as it was recorded.

    :raises BagError: the type is not known, and the recording holds no usable definition.
    """
    known = type_store()
    if not topic.definition:
        if topic.type in known.fielddefs:
            return known
        raise BagError(f'{topic.name}: the type {topic.type} is not known, and the recording holds no definition of it')
    try:
        types = (get_types_from_idl(topic.definition) if topic.definition_format == 'ros2idl'
                 else get_types_from_msg(topic.definition, topic.type))
        if all(known.fielddefs.get(name) == types[name] for name in types):
            return known
        store = get_typestore(Stores.EMPTY)
        store.register({**{name: known.fielddefs[name] for name in known.fielddefs if name not in types}, **types})
        return store
    except Exception as error:  # noqa: B902 - whatever the library raises for text that it cannot read
        if topic.type in known.fielddefs:
            return known
        raise BagError(f'{topic.name}: the definition of {topic.type} in the recording is not readable: '
                       f'{one_line(error)}') from error


def _used(definition: tuple) -> list[str]:
    """Return the types of messages that a definition uses."""
    used = []
    for _, (kind, inner) in definition[1]:
        if kind in (Nodetype.ARRAY, Nodetype.SEQUENCE):
            kind, inner = inner[0]
        if kind == Nodetype.NAME:
            used.append(inner)
    return used


def _default(store: Typestore, description: tuple) -> Any:
    kind, inner = description
    if kind == Nodetype.NAME:
        return store.types[inner](**{name: _default(store, field) for name, field in store.fielddefs[inner][1]})
    if kind == Nodetype.BASE:
        return {'string': '', 'wstring': '', 'bool': False, 'float32': 0.0, 'float64': 0.0}.get(inner[0], 0)
    (element, element_inner), length = inner[0], inner[1] if kind == Nodetype.ARRAY else 0
    if element == Nodetype.BASE and element_inner[0] not in ('string', 'wstring'):
        return np.zeros(length, dtype=element_inner[0])
    return [_default(store, inner[0]) for _ in range(length)]
