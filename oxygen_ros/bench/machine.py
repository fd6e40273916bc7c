"""Says on what something was measured: machine, versions, revision."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy
import psutil
import torch

from oxygen_ros.version import version as own_version


def machine(device: str) -> dict:
    """Return what the results depend on besides the settings."""
    result = {'processor': _processor(), 'cores': psutil.cpu_count(), 'memory_bytes': psutil.virtual_memory().total,
              'system': platform.platform(), 'load': os.getloadavg()[0], 'amx_bf16': 'amx_bf16' in _flags(),
              'avx512_bf16': 'avx512_bf16' in _flags(), 'threads': torch.get_num_threads(),
              'real_time_priority': os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR)}
    if device.startswith('cuda'):
        properties = torch.cuda.get_device_properties(device)
        result |= {'gpu': properties.name, 'gpu_memory_bytes': properties.total_memory,
                   'gpu_processors': properties.multi_processor_count,
                   'gpu_capability': f'{properties.major}.{properties.minor}', 'cuda': torch.version.cuda}
    return result


def versions() -> dict[str, str]:
    """Return the versions of what takes part, and the revision of the source tree if it is one."""
    result = {'oxygen_ros': own_version(), 'python': sys.version.split()[0], 'torch': torch.__version__,
              'numpy': numpy.__version__}
    try:
        result['rclpy'] = version('ros-jazzy-rclpy')
    except PackageNotFoundError:
        pass
    return result | {'revision': revision()}


def revision() -> str:
    """Return the git revision of the source tree, with '+' if it was changed since; empty if there is none."""
    root = Path(__file__).resolve().parents[2]
    try:
        words = ('git', '-C', str(root))
        head = subprocess.run([*words, 'rev-parse', '--short=12', 'HEAD'], capture_output=True, text=True, timeout=10)
        changed = subprocess.run([*words, 'status', '--porcelain', '--untracked-files=no'], capture_output=True,
                                 text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ''
    return head.stdout.strip() + ('+' if changed.stdout.strip() else '') if head.returncode == 0 else ''


def _processor() -> str:
    for line in _cpuinfo():
        if line.startswith(('model name', 'Model')):
            return line.split(':', 1)[1].strip()
    return platform.processor() or platform.machine()


def _flags() -> set[str]:
    return next((set(line.split(':', 1)[1].split()) for line in _cpuinfo() if line.startswith('flags')), set())


def _cpuinfo() -> list[str]:
    try:
        return Path('/proc/cpuinfo').read_text().splitlines()
    except OSError:
        return []
