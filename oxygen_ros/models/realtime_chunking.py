"""
Real-time chunking: a new chunk continues the one in execution.

While a chunk is made, `delay` actions of the one before are still executed: the new chunk must agree with those, and
may deviate more and more from the ones after. `GUIDED` pulls the flow there and works with any weights. `TRAINED` fixes
those actions, and needs weights that were trained for it. Black et al. 2025, arXiv 2506.07339; formulas as in LeRobot.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

import torch


class ChunkingMethod(str, enum.Enum):
    """How a chunk is made to continue the one before."""

    GUIDED = 'guided'
    TRAINED = 'trained'


class GuidanceSchedule(str, enum.Enum):
    """How the weight of the old chunk falls from 1 to 0 between `delay` and `reach`."""

    LINEAR = 'linear'
    EXP = 'exp'
    ONES = 'ones'    # it does not fall
    ZEROS = 'zeros'  # it falls at once


@dataclass(frozen=True)
class PreviousChunk:
    """
    What is left of the chunk in execution.

    :param actions: float32 [at most horizon, action_dim] in normalised model space; row 0 is for the same time as row 0
        of the new chunk.
    :param delay: actions that will have been executed when the new chunk is ready.
    :param reach: actions from which on the new chunk is free. :param max_weight: bound of the guidance.
    """

    actions: torch.Tensor
    delay: int
    reach: int
    method: ChunkingMethod = ChunkingMethod.GUIDED
    schedule: GuidanceSchedule = GuidanceSchedule.LINEAR
    max_weight: float = 10.0

    def __post_init__(self) -> None:
        if self.actions.ndim != 2 or not 0 <= self.delay <= len(self.actions) or self.reach < 0 or self.max_weight < 0:
            raise ValueError(f'previous chunk of shape {list(self.actions.shape)} with delay {self.delay}, reach '
                             f'{self.reach} and max_weight {self.max_weight}: delay must be at most its length, the '
                             'others not negative')

    def padded(self, horizon: int) -> torch.Tensor:
        """Return the actions, zeros behind them: [horizon, action_dim]."""
        result = self.actions.new_zeros(horizon, self.actions.shape[1])
        count = min(horizon, len(self.actions))
        result[:count] = self.actions[:count]
        return result

    def weights(self, horizon: int) -> torch.Tensor:
        """Return how much each action of the new chunk is bound to the old one, float32 [horizon]."""
        end = min(self.reach, len(self.actions), horizon)
        start = min(self.delay, end)
        falling = torch.linspace(1, 0, end - start + 2)[1:-1]
        if self.schedule is GuidanceSchedule.EXP:
            falling = falling * torch.expm1(falling) / math.expm1(1)
        elif self.schedule is GuidanceSchedule.ONES:
            falling = torch.ones_like(falling)
        elif self.schedule is GuidanceSchedule.ZEROS:
            falling = torch.zeros_like(falling)
        return torch.cat((torch.ones(start), falling, torch.zeros(horizon - end)))

    def guide(self, velocity: torch.Tensor, x: torch.Tensor, t: float) -> torch.Tensor:
        """
        Return the velocity that also pulls towards the old chunk.

        :param velocity, x: [horizon, action_dim] of the flow at time t (1 noise, 0 actions).
        """
        horizon = len(x)
        done = 1 - t
        error = (self.padded(horizon) - (x - t * velocity)) * self.weights(horizon).to(x.device).unsqueeze(-1)
        strength = self.max_weight
        if done > 0:
            strength = min(strength, t / done * (t**2 + done**2) / t**2)
        return velocity - strength * error
