"""Finds the configuration files of the package, in every way it can be installed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from oxygen_ros.errors import ConfigError


def share_directories() -> list[Path]:
    """Directories that may hold config/ and launch/: source tree, pip's prefix, ROS prefixes; existing ones."""
    here = Path(__file__).resolve()
    candidates = [here.parents[1]]  # source tree (editable install, python -m)
    candidates += [prefix / 'share' / 'oxygen_ros' for prefix in installation_prefixes()]
    candidates += [parent / 'share' / 'oxygen_ros' for parent in here.parents]  # pip --target, colcon without sourcing
    return [path for path in dict.fromkeys(candidates) if (path / 'config').is_dir()]


def installation_prefixes() -> list[Path]:
    """Directories whose share/ holds what packages installed: those of ROS workspaces, and that of this Python."""
    prefixes = (*os.environ.get('AMENT_PREFIX_PATH', '').split(os.pathsep), sys.prefix)
    return [Path(prefix) for prefix in prefixes if prefix]


def config_file(kind: str, name: str, suffix: str = '.yaml') -> Path:
    """
    Return the path of `config/<kind>/<name><suffix>`, or of `name` itself if it is a file.

    :raises ConfigError: names the choices when there is no such file.
    """
    if os.sep in name or name.endswith(suffix):
        path = Path(name).expanduser()
        if path.is_file():
            return path
        raise ConfigError(f'{kind} file {name!r} does not exist: give a path to a {suffix} file or one of '
                          f'{config_names(kind)}')
    for share in share_directories():
        path = share / 'config' / kind / f'{name}{suffix}'
        if path.is_file():
            return path
    raise ConfigError(f'unknown {kind.rstrip("s")} {name!r}: choose one of {config_names(kind)} or give a path to a '
                      f'{suffix} file')


def config_folder(name: str) -> Path:
    """
    Return the path of the folder `config/<name>`.

    :raises ConfigError: it is not installed.
    """
    for share in share_directories():
        if (share / 'config' / name).is_dir():
            return share / 'config' / name
    raise ConfigError(f'folder config/{name} is not installed: install the package again')


def config_names(kind: str, suffix: str = '.yaml') -> list[str]:
    """Return the names that `config_file` knows for a kind ('robots', 'models'), sorted."""
    return sorted({path.stem for share in share_directories() for path in (share / 'config' / kind).glob(f'*{suffix}')})


def interface_files(kind: str) -> dict[str, Path]:
    """
    Return name of an interface -> its definition file, for kind 'msg' or 'srv'.

    :raises ConfigError: when they are not installed.
    """
    for share in share_directories():
        if files := sorted((share / kind).glob(f'*.{kind}')):
            return {file.stem: file for file in files}
    raise ConfigError(f'the definitions of the interfaces ({kind}/*.{kind}) are not installed: install the package '
                      'again')
