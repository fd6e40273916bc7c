"""EnergyMeter: joules that processor and GPU have used, where the platform tells."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

RAPL = Path('/sys/class/powercap')


class EnergyMeter:
    """
    Reads the counters of the platform: RAPL of Intel and AMD processors (which the kernel may let only root read), NVML
    of NVIDIA GPUs. What there is not, is left out.
    """

    def __init__(self, device: str = 'cpu', rapl: Path = RAPL) -> None:
        # Packages only: their parts (cores, memory controller) are in them.
        zones = sorted(path for path in rapl.glob('intel-rapl:*') if path.name.count(':') == 1)
        self._zones = [path for path in zones if _read(path / 'energy_uj') is not None]
        self._gpu = _gpu(device) if device.startswith('cuda') else None

    @property
    def available(self) -> bool:
        """Whether there is any counter."""
        return bool(self._zones) or self._gpu is not None

    def read(self) -> dict[str, float]:
        """Return joules by counter; only differences mean something, see `used`."""
        result = {}
        for zone in self._zones:
            if (value := _read(zone / 'energy_uj')) is not None:
                result[zone.name] = value / 1e6
        if self._gpu is not None:
            result['gpu'] = self._gpu() / 1e3
        return result

    def used(self, before: Mapping[str, float], after: Mapping[str, float]) -> float | None:
        """Return the joules of all counters between two readings, None without any."""
        if not after:
            return None
        return sum(self._difference(name, before[name], value) for name, value in after.items() if name in before)

    def _difference(self, name: str, before: float, after: float) -> float:
        """RAPL counts up to a range and begins anew."""
        if after >= before:
            return after - before
        limit = next((_read(zone / 'max_energy_range_uj') for zone in self._zones if zone.name == name), None)
        return after - before + (limit or 0) / 1e6


def _read(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _gpu(device: str):
    """Return a function that gives the millijoules of a GPU since its driver was loaded, None if there is no such."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(int(device.partition(':')[2] or 0))
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except Exception:  # noqa: B902 - the library is not there, or the GPU (a Jetson's) has no such counter
        return None
    return lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
