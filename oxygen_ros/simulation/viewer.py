"""The interactive viewer of MuJoCo, for people in front of a display."""

from __future__ import annotations

import os
import sys

from oxygen_ros.errors import ConfigError
from oxygen_ros.simulation.simulation import Simulation


def open_viewer(simulation: Simulation):
    """
    Open a window on a simulation.

    :returns: has `sync()`, to be called after steps, and `close()`.
    :raises ConfigError: there is no display, or it cannot be opened.
    """
    if sys.platform.startswith('linux') and not (os.environ.get('DISPLAY') or os.environ.get('WAYLAND_DISPLAY')):
        raise ConfigError('the viewer needs a display, but DISPLAY and WAYLAND_DISPLAY are not set: leave out viewer')
    try:
        from mujoco import viewer
        return viewer.launch_passive(simulation.model, simulation.data, show_left_ui=False, show_right_ui=False)
    except (ImportError, RuntimeError, OSError) as error:
        raise ConfigError(f'the viewer cannot be opened: {error}; leave out viewer') from None
