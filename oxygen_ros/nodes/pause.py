"""Pauses a replay: by the service `pause` of its node, and by the space key of its terminal."""

from __future__ import annotations

import os
import select
import sys
import termios
import threading
import time
import tty

from rclpy.node import Node
from std_srvs.srv import SetBool


class PauseSwitch:
    """
    Whether the replay is paused.

    Threads: the service runs in the executor, the key in a thread of its own, `wait_while_paused` in the replay's.

    :param paused: whether it begins with a pause.
    :ivar changed: set whenever the switch may have changed, or the replay ends.
    """

    def __init__(self, node: Node, paused: bool) -> None:
        self.paused = paused
        self.changed = threading.Event()
        self._node = node
        self._closed = False
        self._service = node.create_service(SetBool, '~/pause', self._on_service)
        self._keys = threading.Thread(target=self._read_keys, name='keys', daemon=True)
        if _owns_terminal():
            self._keys.start()
        if paused:
            node.get_logger().info('paused: ' + ('the space key or ' if _owns_terminal() else '')
                                   + f'the service {self._service.srv_name} begins the replay')

    def set(self, paused: bool) -> None:
        """Pause, or go on."""
        if paused != self.paused:
            self._node.get_logger().info('paused' if paused else 'playing')
        self.paused = paused
        self.changed.set()

    def close(self) -> None:
        """Let everything that waits go on to its end."""
        self._closed = True
        self.changed.set()
        if self._keys.is_alive():
            self._keys.join()

    def wait_while_paused(self, stop: threading.Event) -> int:
        """Wait for the end of a pause. Returns how long it was in ns, 0 if there was none."""
        self.changed.clear()
        if not self.paused:
            return 0
        began = time.monotonic_ns()
        while self.paused and not stop.is_set():
            self.changed.wait(0.5)
            self.changed.clear()
        return time.monotonic_ns() - began

    def _on_service(self, request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        self.set(request.data)
        response.success, response.message = True, 'paused' if request.data else 'playing'
        return response

    def _read_keys(self) -> None:
        terminal = sys.stdin.fileno()
        before = termios.tcgetattr(terminal)
        try:
            tty.setcbreak(terminal)  # keys at once and without an echo; Ctrl-C stays a signal
            while not self._closed:
                if select.select([terminal], [], [], 0.2)[0]:
                    key = os.read(terminal, 1)
                    if key == b' ':
                        self.set(not self.paused)
                    elif not key:
                        return
        finally:
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _owns_terminal() -> bool:
    """Whether this process may read the keys of a terminal: it is its foreground process, and no launcher is."""
    try:
        return sys.stdin.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpid()
    except (OSError, ValueError):
        return False
