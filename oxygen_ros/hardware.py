"""How the computer does: load, memory, temperature, power; what cannot be read is left out."""

from __future__ import annotations

import functools
from typing import Any

import psutil

HOT = 10.0  # degrees below what a sensor calls critical, where its throttling may begin


@functools.cache
def nvidia() -> Any | None:
    """Return NVML, which is there only with an NVIDIA driver and the package nvidia-ml-py; None without."""
    try:
        import pynvml
        pynvml.nvmlInit()
    except Exception:  # noqa: B902 - no package, no library, no driver, no right to use it: all the same here
        return None
    return pynvml


def readings() -> dict[str, float]:
    """Return name -> value; the unit is the end of the name: percent, bytes, celsius, watt."""
    process = _process()
    values: dict[str, float] = {
        'cpu_percent': psutil.cpu_percent(), 'ram_percent': psutil.virtual_memory().percent,
        'process_bytes': process.memory_info().rss, 'threads': process.num_threads()}
    values.update({f'{name}_celsius': celsius for name, celsius, _ in temperatures()})
    if (nvml := nvidia()) is not None:
        for index in range(nvml.nvmlDeviceGetCount()):
            values.update({f'gpu{index}_{name}': value for name, value in _gpu(nvml, index).items()})
    return values


def _gpu(nvml: Any, index: int) -> dict[str, float]:
    device = nvml.nvmlDeviceGetHandleByIndex(index)
    values = {}
    for name, read in (('celsius', lambda: nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU)),
                       ('watt', lambda: nvml.nvmlDeviceGetPowerUsage(device) / 1e3),
                       ('used_bytes', lambda: nvml.nvmlDeviceGetMemoryInfo(device).used)):
        try:
            values[name] = read()
        except nvml.NVMLError:
            pass  # not every device tells everything
    return values


def temperatures() -> list[tuple[str, float, float | None]]:
    """Return (sensor, hottest degrees Celsius, critical degrees or None) for every sensor of the machine."""
    try:
        chips = psutil.sensors_temperatures()
    except (AttributeError, OSError):  # not on this system
        return []
    found = []
    for chip, sensors in chips.items():
        if sensors:
            hottest = max(sensors, key=lambda sensor: sensor.current)
            found.append((chip, hottest.current, hottest.critical or hottest.high))
    return found


def problems(values: dict[str, float]) -> list[str]:
    """Return in words what is wrong with readings."""
    found = [f'{chip} is at {celsius:.0f} °C, critical are {critical:.0f}' for chip, celsius, critical in temperatures()
             if critical and celsius > critical - HOT]
    if values['ram_percent'] > 95:
        found.append(f'{values["ram_percent"]:.0f} % of the memory is in use')
    return found


@functools.cache
def _process() -> psutil.Process:
    return psutil.Process()
