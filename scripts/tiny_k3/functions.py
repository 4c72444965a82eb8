"""Differentiable pieces of K3's layers, with own backward passes where autograd's are slow on a CPU."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from .config import CONV_WIDTH, GATE_LOWER_BOUND, NORM_EPS, SITU_BETA, SITU_LINEAR_BETA

CHUNK = 16
"""Rows of one KDA chunk. The gate's bound of -5 keeps exp() of half a chunk's decay inside fp32."""
_L2_EPS = 1e-6


def rms_norm(x: Tensor, weight: Tensor, eps: float = NORM_EPS) -> Tensor:
    """RMSNorm over the last axis."""
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def mix_and_norm(sources: list[Tensor], query: Tensor, norm_weight: Tensor) -> Tensor:
    """Attention residual over the sources [B, L, H], then the RMSNorm that follows it.

    The softmax runs over the sources: keys are the normed sources, values the raw ones; no 1/sqrt(H).
    """
    stacked = torch.stack(sources)
    scores = (stacked * query).sum(-1) * torch.rsqrt((stacked * stacked).mean(-1) + NORM_EPS)
    mixed = (torch.softmax(scores, 0).unsqueeze(-1) * stacked).sum(0)
    return rms_norm(mixed, norm_weight)


class _ConvSilu(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        length, last = x.shape[1], CONV_WIDTH - 1
        taps = weight[:, 0].t().contiguous()
        y = x * taps[last]
        for j in range(last):
            y[:, last - j :].addcmul_(x[:, : length - last + j], taps[j])
        ctx.save_for_backward(x, taps, y)
        return F.silu(y)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, taps, y = ctx.saved_tensors
        length, channels, last = x.shape[1], x.shape[2], CONV_WIDTH - 1
        grad = torch.ops.aten.silu_backward(grads[0], y)
        grad_x = grad * taps[last]
        grad_taps = [(grad * x).view(-1, channels).sum(0)]
        for j in reversed(range(last)):
            later, earlier = grad[:, last - j :], x[:, : length - last + j]
            grad_x[:, : length - last + j].addcmul_(later, taps[j])
            grad_taps.insert(0, (later * earlier).sum((0, 1)))
        return grad_x, torch.stack(grad_taps, 1).unsqueeze(1)


def conv_silu(x: Tensor, weight: Tensor) -> Tensor:
    """Causal depthwise convolution (x [B, L, P], weight [P, 1, 4], zero history), then SiLU."""
    result: Tensor = _ConvSilu.apply(x, weight)
    return result


class _SituGlu(Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, -1)
        capped_gate = torch.tanh(gate / SITU_BETA)
        sigmoid = torch.sigmoid(gate)
        capped_up = torch.tanh(up / SITU_LINEAR_BETA)
        ctx.save_for_backward(capped_gate, sigmoid, capped_up)
        return (capped_gate * sigmoid).mul_(SITU_BETA * SITU_LINEAR_BETA).mul_(capped_up)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        capped_gate, sigmoid, capped_up = ctx.saved_tensors
        scaled = grads[0] * capped_up
        grad_gate = torch.addcmul(capped_gate, capped_gate, sigmoid, value=-1.0).mul_(sigmoid)
        grad_gate.mul_(SITU_BETA * SITU_LINEAR_BETA)
        grad_gate.addcmul_(sigmoid, 1 - capped_gate * capped_gate, value=SITU_LINEAR_BETA).mul_(scaled)
        grad_up = (1 - capped_up * capped_up).mul_(capped_gate).mul_(sigmoid).mul_(SITU_BETA).mul_(grads[0])
        return torch.cat([grad_gate, grad_up], -1)


def situ_glu(gate_up: Tensor) -> Tensor:
    """[4 tanh(g/4) sigmoid(g)] * [25 tanh(u/25)] of gate_up = [g | u] along the last axis."""
    result: Tensor = _SituGlu.apply(gate_up)
    return result


class _UnitLowerInverse(Function):
    @staticmethod
    def forward(ctx: Any, strict_lower: Tensor) -> Tensor:
        a = strict_lower.reshape(-1, CHUNK, CHUNK)
        inverse = torch.eye(CHUNK, dtype=a.dtype) - a
        power = a
        for _ in range(3):  # (I - A)(I + A^2)(I + A^4)(I + A^8) is exact: A^16 = 0
            power = torch.bmm(power, power)
            inverse = torch.baddbmm(inverse, inverse, power)
        ctx.save_for_backward(inverse)
        return inverse.view(strict_lower.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors
        transposed = inverse.transpose(1, 2)
        grad = torch.bmm(torch.bmm(transposed, grads[0].reshape(-1, CHUNK, CHUNK)), transposed)
        return -grad.tril(-1).view(grads[0].shape)


def kda_gate(z: Tensor, a_log: Tensor) -> Tensor:
    """K3's log decay in (-5, 0): bound * sigmoid(exp(A_log) z)."""
    return GATE_LOWER_BOUND * torch.sigmoid(torch.exp(a_log) * z)


def chunked_delta_rule(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
    """Gated delta rule with per-channel decay, in chunks of 16 rows from a zero state.

    q, k, v, log_decay [B, h, N, 16, D]; beta [B, h, N, 16, 1]; result like v. q and k are L2-normalised
    here and q is scaled by D^-0.5. Decays are taken relative to the chunk's middle row, so that no
    exponent exceeds half a chunk times the gate's bound.
    """
    batch, heads, chunks, _, dim = q.shape
    q = q * (torch.rsqrt((q * q).sum(-1, keepdim=True) + _L2_EPS) * dim**-0.5)
    k = k * torch.rsqrt((k * k).sum(-1, keepdim=True) + _L2_EPS)
    total = log_decay.cumsum(-2)
    middle, last = total[..., CHUNK // 2 - 1 : CHUNK // 2, :], total[..., -1:, :]
    up, since_start = torch.exp(total - middle), torch.exp(total)
    k_earlier = (k * torch.exp(middle - total)).transpose(-1, -2)
    k_to_end = (k * torch.exp(last - total)).transpose(-1, -2)
    strict_lower = ((k * up) @ k_earlier).tril(-1) * beta
    scores = ((q * up) @ k_earlier).tril()
    solved = _UnitLowerInverse.apply(strict_lower) @ torch.cat([v * beta, k * since_start * beta], -1)
    update = k_to_end @ solved
    added, removed = update[..., :dim], update[..., dim:]
    carry = torch.diag_embed(torch.exp(last).squeeze(-2)) - removed
    carries = carry.permute(2, 0, 1, 3, 4).reshape(chunks, batch * heads, dim, dim).unbind(0)
    additions = added.permute(2, 0, 1, 3, 4).reshape(chunks, batch * heads, dim, dim).unbind(0)
    states = [q.new_zeros(batch * heads, dim, dim)]
    for n in range(chunks - 1):
        states.append(torch.baddbmm(additions[n], carries[n], states[-1]))
    state = torch.stack(states).view(chunks, batch, heads, dim, dim).permute(1, 2, 0, 3, 4)
    corrected = solved[..., :dim] - solved[..., dim:] @ state
    return (q * since_start) @ state + scores @ corrected


class _Dispatch(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, row_token: Tensor, pair_row: Tensor, per_token: int) -> Tensor:
        ctx.save_for_backward(pair_row)
        ctx.per_token = per_token
        return torch.cat([x, x.new_zeros(1, x.shape[1])]).index_select(0, row_token)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (pair_row,) = ctx.saved_tensors
        grad = grads[0].index_select(0, pair_row).view(-1, ctx.per_token, grads[0].shape[1]).sum(1)
        return grad, None, None, None


class _Combine(Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, row_pair: Tensor, pair_row: Tensor) -> Tensor:
        ctx.save_for_backward(row_pair)
        return rows.index_select(0, pair_row)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (row_pair,) = ctx.saved_tensors
        padded = torch.cat([grads[0], grads[0].new_zeros(1, grads[0].shape[1])])
        return padded.index_select(0, row_pair), None, None


class ExpertRows:
    """Where each (token, choice) pair lies in a buffer of `capacity` rows per expert; unused rows are zero.

    `chosen` is [T, k]. Pairs and used rows correspond one to one, so both directions are gathers.
    """

    def __init__(self, chosen: Tensor, num_experts: int) -> None:
        tokens, self.per_token = chosen.shape
        pairs = tokens * self.per_token
        expert = chosen.reshape(-1)
        self.load = torch.bincount(expert, minlength=num_experts)
        self.capacity = int(self.load.max())
        order = torch.argsort(expert, stable=True)
        first = self.load.cumsum(0) - self.load
        sorted_expert = expert[order]
        rows = sorted_expert * self.capacity + torch.arange(pairs) - first[sorted_expert]
        self._pair_row = torch.empty_like(expert)
        self._pair_row[order] = rows
        self._row_pair = torch.full((num_experts * self.capacity,), pairs)
        self._row_pair[rows] = order
        self._row_token = self._row_pair // self.per_token

    def dispatch(self, x: Tensor) -> Tensor:
        """x [T, d] -> [experts, capacity, d]."""
        rows: Tensor = _Dispatch.apply(x, self._row_token, self._pair_row, self.per_token)
        return rows.view(-1, self.capacity, x.shape[1])

    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        """rows [experts, capacity, d], weights [T, k] -> the weighted sum over the choices, [T, d]."""
        flat = rows.reshape(-1, rows.shape[-1])
        pairs: Tensor = _Combine.apply(flat, self._row_pair, self._pair_row)
        return (pairs.view(-1, self.per_token, flat.shape[1]) * weights.unsqueeze(-1)).sum(1)
