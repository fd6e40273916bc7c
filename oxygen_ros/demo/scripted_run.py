"""ScriptedRun: the demo in the simulator by its own script."""

from __future__ import annotations

from oxygen_ros.demo.script import Part, write_script
from oxygen_ros.demo.simulator_run import SimulatorRun
from oxygen_ros.nodes.simulator_monitor import SimulatorMonitor
from oxygen_ros.simulation.episode import DURATION

# Seconds of the simulator.
FIRST, QUESTION = 0.8, 1.2  # before the first question, and after each
AFTERWARDS = 0.8  # for what is said when an instruction is over


class ScriptedRun(SimulatorRun):
    """Tells and asks what the script for the scene says."""

    def _happen(self, monitor: SimulatorMonitor) -> None:
        for part in write_script(self.ledger.truth.objects, self._settings.seed):
            if not self._is_over():
                self._play_part(monitor, part)

    def _play_part(self, monitor: SimulatorMonitor, part: Part) -> None:
        """Tell, ask, and wait until a fingertip has reached the object or the time for it is over."""
        ledger, count = self.ledger, len(self.ledger.told)
        self.enter(monitor, part.instruction)
        self._pass(monitor, DURATION, lambda: len(ledger.told) > count)
        if len(ledger.told) == count:
            return  # no answer, or refused: that is in the summary
        told = ledger.told[-1]
        self._pass(monitor, FIRST)
        for question in part.questions:
            self.enter(monitor, question)
            self._pass(monitor, QUESTION)
        self._pass(monitor, DURATION - told.seconds_to(ledger.now_ns), lambda: told.reached_ns is not None)
        with monitor.record.lock:
            ledger.conclude()
        self._pass(monitor, AFTERWARDS)
        if part.recall:
            self.enter(monitor, part.recall)
            self._pass(monitor, QUESTION)
