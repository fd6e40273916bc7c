"""What training minimises: texts, the velocity of the flow, and what each patch of the first camera shows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from oxygen_ros.training.batches import TrainingBatch
from oxygen_ros.training.packed import NO_TARGET, PackedForward


@dataclass(frozen=True)
class LossWeights:
    """Weights of the parts; a part is a mean over what it counts."""

    text: float = 1.0
    action: float = 1.0
    patch: float = 0.25


class PatchHead(nn.Module):
    """
    Reads from an image token which object its patch shows, and where the centre of that object is.

    The vision tower is trained on it first, and along with everything else later. It is not part of the checkpoint:
    without it the tower finds out very slowly what matters in a picture.
    """

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.read = nn.Linear(width, classes + 2)

    def forward(self, image: torch.Tensor, batch: TrainingBatch) -> dict[str, torch.Tensor]:
        """
        Return 'patch' (the loss), 'patch_right' (share of the patches with an object whose class is right).

        :param image: [B, at least patches, width], the tokens of the first camera first.
        """
        wanted, offset = batch.patch_class.flatten(1), batch.patch_offset.flatten(1, 2)
        read = self.read(self.norm(image[:, :wanted.shape[1]].float()))
        logits, where = read[..., :-2].float(), read[..., -2:].float()
        there = (wanted > 0).float()
        # Few patches show an object: those without one count as much as all those with one.
        balance = torch.where(there > 0, 1 / there.sum().clamp(min=1), 1 / (1 - there).sum().clamp(min=1))
        classes = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction='none')
        error = F.smooth_l1_loss(where, offset, reduction='none', beta=0.1).sum(-1)
        loss = (classes * balance.flatten()).sum() + 2 * (error * there).sum() / there.sum().clamp(min=1)
        right = ((logits.argmax(-1) == wanted) * there).sum() / there.sum().clamp(min=1)
        distance = ((where - offset).norm(dim=-1) * there).sum() / there.sum().clamp(min=1)
        return {'patch': loss, 'patch_right': right.detach(), 'patch_offset': distance.detach()}


def all_losses(forward: PackedForward, head: PatchHead, batch: TrainingBatch, weights: LossWeights,
               ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the sum that is minimised, and its parts."""
    packed = batch.packed
    output = forward(packed)
    said = packed.targets != NO_TARGET
    logits = forward.logits(output.hidden)
    each = F.cross_entropy(logits.flatten(0, 2), packed.targets.flatten(), reduction='none', ignore_index=NO_TARGET)
    text = (each * packed.weights.flatten()).sum() / packed.weights.sum().clamp(min=1e-6)
    right = ((logits.argmax(-1) == packed.targets) & said).sum() / said.sum()
    velocity = packed.noise - packed.actions.unsqueeze(2)
    flow = (output.velocity - velocity).square().mean((2, 3, 4))
    action = (flow * packed.action_weights).sum() / packed.action_weights.sum()
    parts = {'text': text, 'text_right': right, 'action': action, **head(output.image, batch)}
    total = weights.text * text + weights.action * action + weights.patch * parts['patch']
    return total, {name: value.detach() for name, value in parts.items()}


def patch_losses(forward: PackedForward, head: PatchHead, batch: TrainingBatch,
                 ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the loss of the vision tower alone."""
    parts = head(forward.vision(batch.packed.pixels[:, :1]), batch)
    return parts['patch'], {name: value.detach() for name, value in parts.items()}
