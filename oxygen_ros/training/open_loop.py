"""Evaluation on held-out frames without a simulator: quick enough to run on the way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch

from oxygen_ros.training.batches import TrainingBatch
from oxygen_ros.training.losses import PatchHead
from oxygen_ros.training.packed import NO_TARGET, PackedForward


@torch.inference_mode()
def score(forward: PackedForward, head: PatchHead, batches: Iterable[TrainingBatch]) -> dict[str, float]:
    """
    Return figures of a model on packed batches, which were made with flow time 1.

    A text counts as right if every token of it is what greedy decoding would give: with teacher forcing that is the
    same as decoding it, up to its first mistake. Only texts with one right answer count. Keys: 'text/KIND' share of
    right texts, 'count/KIND', 'action/KIND' root mean square error of the normalised actions when denoised in a single
    step, 'patch_right', 'patch_offset' (in patches).
    """
    right, count = defaultdict(int), defaultdict(int)
    errors = defaultdict(list)
    patches = defaultdict(list)
    for batch in batches:
        packed = batch.packed
        output = forward(packed)
        chosen = forward.logits(output.hidden).argmax(-1)
        wrong = (chosen != packed.targets) & (packed.targets != NO_TARGET)
        # With times of 1 the sample is noise alone, and the velocity leads from there to the actions in one step.
        guessed = packed.noise - output.velocity
        squares = (guessed - packed.actions.unsqueeze(2)).square().mean((2, 3, 4))
        for name, value in head(output.image, batch).items():
            patches[name].append(float(value))
        for b, frame_rows in enumerate(batch.rows):
            for k, row in enumerate(frame_rows):
                errors[row.order.kind].append(float(squares[b, k]))
                for number, text in enumerate(row.branches, 1):
                    if text.clear:
                        count[text.kind] += 1
                        right[text.kind] += not bool((wrong[b, k] & (packed.segments[b, k] == number)).any())
    figures = {f'text/{kind}': right[kind] / count[kind] for kind in sorted(count)}
    figures |= {f'count/{kind}': count[kind] for kind in sorted(count)}
    figures |= {f'action/{kind}': (sum(e) / len(e)) ** 0.5 for kind, e in sorted(errors.items())}
    answers = [kind for kind in count if kind not in ('speech', 'memory')]
    if answers:
        figures['text/answers'] = sum(right[kind] for kind in answers) / sum(count[kind] for kind in answers)
    return figures | {name: sum(values) / len(values) for name, values in patches.items()}
