"""MXFP4 as compressed-tensors packs it: E2M1 codes, two to a byte, one E8M0 scale per 32 input elements."""

from __future__ import annotations

import torch
from torch import Tensor

from scripts.make_tiny_checkpoint import MXFP4_GROUP

_MAGNITUDES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
_MIDPOINTS = (_MAGNITUDES[1:] + _MAGNITUDES[:-1]) / 2
_SIGNED = torch.cat([_MAGNITUDES, -_MAGNITUDES])
_SMALLEST_PEAK = 2.0**-100
"""Groups of zeros get a scale from this peak, well inside E8M0's range."""


def _quantise(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes (0..15) and values [..., n/32, 32] and exponents [..., n/32, 1] of `weight` [..., n].

    The exponent is the better (squared error) of the two that bring the group's peak near 6.
    """
    groups = weight.detach().float().reshape(*weight.shape[:-1], -1, MXFP4_GROUP)
    peak = groups.abs().amax(-1, keepdim=True).clamp_min(_SMALLEST_PEAK)
    low = torch.floor(torch.log2(peak)) - 2
    candidates = []
    for exponent in (low, low + 1):
        scale = torch.exp2(exponent)
        codes = torch.bucketize((groups / scale).abs(), _MIDPOINTS)
        values = _MAGNITUDES[codes] * groups.sign() * scale
        candidates.append((((values - groups) ** 2).sum(-1, keepdim=True), codes, exponent, values))
    (error_a, codes_a, exp_a, values_a), (error_b, codes_b, exp_b, values_b) = candidates
    second = error_b < error_a
    codes = torch.where(second, codes_b, codes_a) + 8 * torch.signbit(groups).long()
    return codes, torch.where(second, exp_b, exp_a), torch.where(second, values_b, values_a)


def round_trip(weight: Tensor) -> Tensor:
    """`weight` [..., n] as it reads back after packing, same shape, fp32."""
    return _quantise(weight)[2].reshape(weight.shape)


def pack(weight: Tensor) -> tuple[Tensor, Tensor]:
    """`weight` [..., n] -> packed uint8 [..., n/2] (low nibble: even element), scale bytes [..., n/32]."""
    codes, exponent, _ = _quantise(weight)
    codes = codes.reshape(weight.shape)
    packed = codes[..., 0::2] | codes[..., 1::2] << 4
    return packed.to(torch.uint8), (exponent.squeeze(-1) + 127).to(torch.uint8)


def unpack(packed: Tensor, scale: Tensor) -> Tensor:
    """Inverse of `pack`: uint8 [..., n/2] and [..., n/32] -> fp32 [..., n]."""
    codes = torch.stack([packed & 15, packed >> 4], -1).long().reshape(*scale.shape, MXFP4_GROUP)
    values = _SIGNED[codes] * torch.exp2(scale.float() - 127)[..., None]
    return values.reshape(*packed.shape[:-1], -1)
