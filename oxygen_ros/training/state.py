"""What a run has learned so far: weights, their average, the optimiser. Saved whole, so that a run goes on exactly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from oxygen_ros.errors import ConfigError
from oxygen_ros.training.config import TrainingConfig

KEPT = 2  # saved states that stay


class TrainingState:
    """
    Owns the optimiser and the averaged weights of the modules.

    :param modules: name -> module; all their parameters are trained. :param averaged: name of the module whose weights
        are averaged.
    """

    def __init__(self, modules: dict[str, nn.Module], averaged: str, config: TrainingConfig) -> None:
        self.step = 0
        self._config = config
        self.parameters = {f'{name}.{key}': parameter for name, module in modules.items()
                           for key, parameter in module.named_parameters()}
        for parameter in self.parameters.values():
            parameter.requires_grad_(True)
        self._averaged = averaged
        self.average = {key: parameter.detach().clone() for key, parameter in modules[averaged].named_parameters()}
        matrices = [p for p in self.parameters.values() if p.ndim > 1]
        vectors = [p for p in self.parameters.values() if p.ndim < 2]
        self.optimiser = torch.optim.AdamW(
            [{'params': matrices, 'weight_decay': config.weight_decay}, {'params': vectors, 'weight_decay': 0.0}],
            lr=config.learning_rate, betas=(0.9, 0.98), fused=True)

    def update(self, loss: torch.Tensor, rate: float) -> float:
        """Take one step down a loss; return the norm of the gradient. A loss that is not finite is an error."""
        loss.backward()
        norm = float(torch.nn.utils.clip_grad_norm_(list(self.parameters.values()), self._config.clip))
        if not norm < float('inf'):
            raise FloatingPointError(f'the gradient of step {self.step} is not finite: start again from the last '
                                     'checkpoint with a lower learning_rate')
        for group in self.optimiser.param_groups:
            group['lr'] = rate
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.step += 1
        # Early averages forget quickly: the first weights are worth nothing.
        decay = min(self._config.ema, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            values = [self.parameters[f'{self._averaged}.{key}'] for key in self.average]
            torch._foreach_lerp_(list(self.average.values()), values, 1 - decay)
        return norm

    def save(self, folder: Path) -> Path:
        """Write everything into a file of the folder; it appears when it is complete. Old ones go."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = dict(self._tensors())
        final = folder / f'step_{self.step:07d}.safetensors'
        partial = final.with_suffix('.partial')
        save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, partial,
                  {'step': json.dumps(self.step)})
        partial.replace(final)
        for old in saved_states(folder)[:-KEPT]:
            old.unlink()
        return final

    def load(self, path: Path) -> None:
        """
        Take everything over from a file that `save` wrote.

        :raises ConfigError: it is of another network.
        """
        with safe_open(path, framework='pt') as file:
            names = set(file.keys())
            self.step = json.loads(file.metadata()['step'])
            moved = {name.removeprefix('first.') for name in names if name.startswith('first.')}
            for name, parameter in self.parameters.items():
                if name in moved:
                    self.optimiser.state[parameter] = {
                        'step': torch.zeros(()), 'exp_avg': torch.empty_like(parameter),
                        'exp_avg_sq': torch.empty_like(parameter)}
                else:
                    self.optimiser.state.pop(parameter, None)
            mine = dict(self._tensors())
            wrong = sorted(names ^ set(mine)) or [
                name for name, tensor in mine.items() if list(tensor.shape) != file.get_slice(name).get_shape()]
            if wrong:
                raise ConfigError(f'{path} is of another network (it differs in {wrong[0]} and {len(wrong) - 1} more): '
                                  'give the run folder of this recipe, or an empty one')
            with torch.no_grad():
                for name, tensor in mine.items():
                    tensor.copy_(file.get_tensor(name))

    def start_with(self, path: Path) -> None:
        """
        Take over the averaged weights and those of the other modules from a file that `save` wrote, and nothing else.

        :raises ConfigError: it is of another network.
        """
        with safe_open(path, framework='pt') as file:
            names = set(file.keys())
            with torch.no_grad():
                for name, parameter in self.parameters.items():
                    key = name.removeprefix(f'{self._averaged}.')
                    averaged = name != key
                    source = f'average.{key}' if averaged else f'weight.{name}'
                    if source not in names or file.get_slice(source).get_shape() != list(parameter.shape):
                        raise ConfigError(f'{path} is of another network (it differs in {source}): give a run of the '
                                          'same model')
                    parameter.copy_(file.get_tensor(source))
                    if averaged:
                        self.average[key].copy_(parameter)

    def _tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self.parameters.items():
            yield f'weight.{name}', parameter
            if parameter in self.optimiser.state:
                moments = self.optimiser.state[parameter]
                yield f'first.{name}', moments['exp_avg']
                yield f'second.{name}', moments['exp_avg_sq']
                yield f'count.{name}', moments['step']
        for key, tensor in self.average.items():
            yield f'average.{key}', tensor


def saved_states(folder: Path) -> list[Path]:
    """Return the saved states of a folder, oldest first."""
    return sorted(folder.glob('step_*.safetensors'))


def saved_step(path: Path) -> int:
    """Return the step of a saved state."""
    with safe_open(path, framework='pt') as file:
        return json.loads(file.metadata()['step'])


def averaged_weights(path: Path) -> tuple[int, dict[str, torch.Tensor]]:
    """Return the step and the averaged weights of a saved state."""
    with safe_open(path, framework='pt') as file:
        return json.loads(file.metadata()['step']), {
            name.removeprefix('average.'): file.get_tensor(name) for name in file.keys() if name.startswith('average.')}
