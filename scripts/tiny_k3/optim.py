"""Muon for the layers' matrices, AdamW for everything else; Muon's work is shared among the processes."""

from __future__ import annotations

from collections import defaultdict

import torch
import torch.distributed as dist
from torch import Tensor, nn

_MOMENTUM = 0.95
_WEIGHT_DECAY = 0.02
_NOT_MUON = ("q_conv1d", "k_conv1d", "v_conv1d", "b_proj", "gate")


def orthogonalise(matrices: Tensor) -> Tensor:
    """Newton-Schulz iteration of Muon: [..., m, n] with m <= n, singular values brought near 1."""
    x = matrices / (matrices.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.transpose(-1, -2)
        polynomial = torch.baddbmm(gram, gram, gram, beta=-4.7750, alpha=2.0315)
        x = torch.baddbmm(x, polynomial, x, beta=3.4445)
    return x


def _uses_muon(name: str, parameter: Tensor) -> bool:
    return name.startswith("layers") and parameter.ndim >= 2 and name.split(".")[-1] not in _NOT_MUON


class HybridOptimizer:
    """One step over a model whose gradients are already summed over `world` processes."""

    def __init__(
        self, model: nn.Module, muon_lr: float, adam_lr: float, rank: int = 0, world: int = 1
    ) -> None:
        named = list(model.named_parameters())
        self._matrices = [p for name, p in named if _uses_muon(name, p)]
        others = [p for name, p in named if not _uses_muon(name, p)]
        self._muon_lr, self._adam_lr, self._world = muon_lr, adam_lr, world
        self._adam = torch.optim.AdamW(others, lr=adam_lr, betas=(0.9, 0.97), eps=1e-10, weight_decay=0.0)
        self._momenta = [torch.zeros_like(p) for p in self._matrices]
        self._owned = self._share(rank, world)

    def _share(self, rank: int, world: int) -> dict[tuple[int, int], list[int]]:
        """Indices of the matrices this process updates, by (short, long) side; work is spread evenly."""
        work = [(p.numel() * min(p.shape[-2:]), i) for i, p in enumerate(self._matrices)]
        totals = [0] * world
        owned: dict[tuple[int, int], list[int]] = defaultdict(list)
        for cost, index in sorted(work, reverse=True):
            owner = totals.index(min(totals))
            totals[owner] += cost
            if owner == rank:
                rows, columns = self._matrices[index].shape[-2:]
                owned[min(rows, columns), max(rows, columns)].append(index)
        return owned

    def step(self, lr_factor: float) -> None:
        """Update with both learning rates times `lr_factor`, then drop the gradients."""
        updates = [torch.zeros_like(p) for p in self._matrices]
        for (short, long), indices in self._owned.items():
            directions = [self._direction(i).reshape(-1, short, long) for i in indices]
            flat = orthogonalise(torch.cat(directions)).split([d.shape[0] for d in directions])
            for index, update in zip(indices, flat, strict=True):
                updates[index] = self._restore(update, self._matrices[index])
        if self._world > 1:
            self._all_reduce(updates)
        lr = self._muon_lr * lr_factor
        with torch.no_grad():
            for parameter, update in zip(self._matrices, updates, strict=True):
                parameter.mul_(1 - lr * _WEIGHT_DECAY).add_(update, alpha=-lr)
                parameter.grad = None
        for group in self._adam.param_groups:
            group["lr"] = self._adam_lr * lr_factor
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)

    def _direction(self, index: int) -> Tensor:
        """Nesterov momentum of one matrix (or stack), short side first."""
        gradient = self._matrices[index].grad
        assert gradient is not None
        momentum = self._momenta[index].lerp_(gradient, 1 - _MOMENTUM)
        direction = gradient.lerp(momentum, _MOMENTUM)
        return direction.transpose(-1, -2) if direction.shape[-2] > direction.shape[-1] else direction

    @staticmethod
    def _restore(update: Tensor, parameter: Tensor) -> Tensor:
        """Back to the parameter's orientation, scaled for tall matrices."""
        rows, columns = parameter.shape[-2:]
        if rows > columns:
            update = update.transpose(-1, -2) * (rows / columns) ** 0.5
        return update.reshape(parameter.shape)

    @staticmethod
    def _all_reduce(updates: list[Tensor]) -> None:
        flat = torch.cat([u.reshape(-1) for u in updates])
        dist.all_reduce(flat)
        for update, part in zip(updates, flat.split([u.numel() for u in updates]), strict=True):
            update.copy_(part.view_as(update))
