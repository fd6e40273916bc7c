"""Devices: what each can do at most, from its maker's documents, or measured here."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from oxygen_ros.errors import ConfigError

GIGA, TERA = 1e9, 1e12


@dataclass(frozen=True)
class Device:
    """
    :param flops: peak of bfloat16 matrix products with float32 sums, without sparsity, per second.
    :param bandwidth: bytes per second from its memory. :param memory: bytes. :param source: of these figures.
    """

    name: str
    flops: float
    bandwidth: float
    memory: float
    source: str


DEVICES = {
    'rtx4090': Device('GeForce RTX 4090', 165.2 * TERA, 1008 * GIGA, 24 * GIGA,
                      'NVIDIA Ada GPU architecture whitepaper, appendix A'),
    'rtx5090': Device('GeForce RTX 5090', 209.5 * TERA, 1792 * GIGA, 32 * GIGA,
                      'NVIDIA RTX Blackwell GPU architecture whitepaper, appendix A'),
    'thor': Device('Jetson AGX Thor (T5000)', 2070 / 8 * TERA, 273 * GIGA, 128 * GIGA,
                   'NVIDIA Jetson Thor data sheet: 2070 TFLOPS of sparse FP4; bfloat16 derived as 1/8 of it (dense '
                   '1/2, FP8 1/2, bfloat16 1/2)'),
    'orin': Device('Jetson AGX Orin 64 GB', 170 / 4 * TERA, 204.8 * GIGA, 64 * GIGA,
                   'NVIDIA Jetson AGX Orin data sheet: 170 TOPS of sparse INT8 on the GPU; bfloat16 derived as 1/4 of '
                   'it (dense 1/2, 16 bit 1/2)'),
    'a100': Device('A100 80 GB SXM', 312 * TERA, 2039 * GIGA, 80 * GIGA, 'NVIDIA A100 data sheet'),
    'l40s': Device('L40S', 362 * TERA, 864 * GIGA, 48 * GIGA, 'NVIDIA L40S data sheet'),
    'h100': Device('H100 SXM', 989.5 * TERA, 3350 * GIGA, 80 * GIGA,
                   'NVIDIA H100 data sheet: half of the figure with sparsity'),
    'h200': Device('H200 SXM', 989.5 * TERA, 4800 * GIGA, 141 * GIGA,
                   'NVIDIA H200 data sheet: half of the figure with sparsity'),
}
MEASURED = 'cpu'
SECONDS = 0.4  # of each measurement


def device_of(name: str, dtype: torch.dtype, weight_bytes: float) -> Device:
    """
    Return a device by name; 'cpu' is this machine, measured just now with as many threads as torch has.

    :param weight_bytes: of the model: a processor reads weights that fit into its cache faster than others.
    :raises ConfigError: it is unknown.
    """
    if name == MEASURED:
        return measured_cpu(dtype, weight_bytes)
    if name not in DEVICES:
        raise ConfigError(f'unknown device {name!r}: choose one of {[*DEVICES, MEASURED]}')
    return DEVICES[name]


def measured_cpu(dtype: torch.dtype, weight_bytes: float) -> Device:
    """Measure this processor: the best of large matrix products, and of reading as many bytes as the weights are."""
    a, b = torch.randn(1024, 2048).to(dtype), torch.randn(2048, 2048).to(dtype)
    product = _best(lambda: torch.nn.functional.linear(a, b))
    # A matrix-vector product reads every weight once, in the way that decoding does.
    rows = max(1024, int(weight_bytes / dtype.itemsize / 4096))
    weights, vector = torch.zeros((rows, 4096), dtype=dtype), torch.zeros((1, 4096), dtype=dtype)
    read = min(_best(lambda: torch.nn.functional.linear(vector, weights)), _best(weights.sum, seconds=SECONDS / 2))
    threads = torch.get_num_threads()
    memory = weights.numel() * weights.element_size()
    return Device(f'this processor, {threads} thread{"s" * (threads > 1)}', 2 * 1024 * 2048 * 2048 / product,
                  memory / read, 0.0, f'measured here: products of 1024 x 2048 x 2048, and one pass over '
                                      f'{memory / 1e6:.0f} MB, in {dtype}')


def _best(work: Callable[[], object], seconds: float = SECONDS) -> float:
    """Return the shortest CPU time per thread of some repetitions: what else runs here makes it no longer."""
    threads = torch.get_num_threads()
    work()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        start = time.process_time()
        work()
        times.append((time.process_time() - start) / threads)
    return min(times)
