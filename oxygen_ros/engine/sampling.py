"""Chooses tokens. Every request has its own generator: its text never depends on its neighbours in the batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from oxygen_ros.engine.requests import SamplingParams


class Sampler:
    """Sampler of one request, with the state of its generator."""

    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        self._generator = torch.Generator().manual_seed(params.seed)

    def choose(self, logits: torch.Tensor) -> int:
        """Sample one token from logits float32 [vocabulary] on the CPU: temperature, then nucleus (top-p)."""
        # The largest becomes 0 and the temperature not too small: whatever is divided, nothing overflows to NaN.
        scaled = (logits - logits.max()) / max(self.params.temperature, 1e-6)
        probabilities = torch.softmax(scaled, dim=-1)
        if self.params.top_p < 1:
            ordered, index = probabilities.sort(descending=True, stable=True)
            # Keep tokens until their sum reaches top_p; the first is always kept.
            ordered[ordered.cumsum(0) - ordered >= self.params.top_p] = 0
            return int(index[torch.multinomial(ordered, 1, generator=self._generator)])
        return int(torch.multinomial(probabilities, 1, generator=self._generator))


def choose_tokens(samplers: Sequence[Sampler], logits: torch.Tensor, suppressed: torch.Tensor | None,
                  ) -> list[int | None | Exception]:
    """
    Choose the next token of every branch in a batch; None where the logits are NaN or infinite, and what a sampler
    raised where it did: that is the fault of one branch alone.

    :param logits: float32 [branches, vocabulary]; changed in place at the suppressed tokens.
    :param suppressed: int64 ids that are never chosen, or None.
    """
    if suppressed is not None:
        logits.index_fill_(1, suppressed, float('-inf'))
    best, index = logits.max(dim=-1)  # NaN, if there is one
    tokens: list[int | None | Exception] = [
        None if token < 0 else token for token in torch.where(best.isfinite(), index, -1).tolist()]
    for row, sampler in enumerate(samplers):
        if sampler.params.temperature > 0 and tokens[row] is not None:
            try:
                tokens[row] = sampler.choose(logits[row].cpu())
            except Exception as error:  # noqa: B902
                tokens[row] = error
    return tokens
