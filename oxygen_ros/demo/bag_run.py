"""BagRun: the demo that plays a recording."""

from __future__ import annotations

from oxygen_ros.demo.conversation import CONVERSATION
from oxygen_ros.demo.run import DemoRun
from oxygen_ros.nodes.demo_monitor import DemoMonitor


class BagRun(DemoRun):
    """Watches for the set duration and holds the conversation meanwhile."""

    def _measure(self, monitor: DemoMonitor) -> None:
        first, duration = monitor.record.chunks[0], self._settings.duration
        self._watch(monitor, lambda: monitor.services_ready, first + duration)
        for step in CONVERSATION:
            self._watch(monitor, lambda: False, first + step.at * duration)
            monitor.act(step)
        self._watch(monitor, lambda: False, first + duration)
        self._wait_for_the_rest(monitor)
