"""Case of preprocessing: pictures, state bins and normalisation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from oxygen_ros.errors import ConfigError
from oxygen_ros.models.pi05_prompt import state_bins
from oxygen_ros.models.resize_torch import resize_with_pad_torch
from oxygen_ros.perception.resize import resize_with_pad
from oxygen_ros.robot.normalization import EPSILON, Normalizer, StatisticsMode, load_statistics
from oxygen_ros.verify.report import Report, Tolerance

VECTORS = 'preprocess.safetensors'
EPSILONS = {'openpi': EPSILON, 'lerobot': 0.0}
FLOAT32 = Tolerance(rtol=1e-6, atol=2e-6)
NOTES = ("JAX's resizing and torch's of uint8 pictures are not compared: no serving path of π0.5 uses them",
         'numbers that are constant in the statistics are not compared when normalised: they become -1 here, and in '
         'the reference whatever a division by almost nothing gives')


def run(case: Path, report: Report) -> None:
    """Compare every vector that a serving path of the reference produces."""
    try:
        given = load_file(case / VECTORS)
    except (SafetensorError, OSError) as error:
        raise ConfigError(f'{str(case / VECTORS)!r} cannot be read: {error}') from error
    report.notes.extend(NOTES)
    try:
        _pictures(given, report)
        _state(given, report)
        _normalisation(case, given, report)
    except KeyError as error:
        raise ConfigError(f'{str(case / VECTORS)!r} lacks {error}') from error


def _pictures(given: dict[str, torch.Tensor], report: Report) -> None:
    for name in (key.removesuffix('.input_u8_hwc') for key in given if key.endswith('.input_u8_hwc')):
        picture = given[f'{name}.input_u8_hwc'].numpy()
        expected = given[f'{name}.pil_u8_hwc']
        height, width = expected.shape[:2]
        report.equal('pictures', f'{name}.pil_u8_hwc', '', resize_with_pad(picture, height, width).ravel().tolist(),
                     expected.flatten().tolist())
        report.close('pictures', f'{name}.torch_f32_hwc', '', resize_with_pad_torch(picture, height, width) * 2 - 1,
                     given[f'{name}.torch_f32_hwc'], FLOAT32)


def _state(given: dict[str, torch.Tensor], report: Report) -> None:
    report.equal('state', 'state.bins', '', state_bins(given['state.normalized'].numpy()).tolist(),
                 given['state.bins'].tolist())


def _normalisation(case: Path, given: dict[str, torch.Tensor], report: Report) -> None:
    x, y = given['norm.x'].double().numpy(), given['norm.actions32'].double().numpy()
    size = x.shape[1]
    state, actions = (load_statistics(case / 'norm_stats.json', key, StatisticsMode.QUANTILE, size)
                      for key in ('state', 'actions'))
    varies = np.flatnonzero(state.scale > 0)
    for name, epsilon in EPSILONS.items():
        got = torch.from_numpy(Normalizer(state, epsilon).normalize(x))
        report.close('normalisation', f'norm.quantile_{name}', '', got[:, varies],
                     given[f'norm.quantile_{name}'][:, varies], FLOAT32)
        got = torch.from_numpy(Normalizer(actions, epsilon).unnormalize(y[:, :size]))
        report.close('normalisation', f'norm.unquantile_{name}', '', got, given[f'norm.unquantile_{name}'][:, :size],
                     FLOAT32)
