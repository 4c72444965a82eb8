"""Kimi-K3 in torch for training: KDA and gated NoPE MLA layers, attention residuals, latent MoE, SiTU.

Parameters carry the names of the HF checkpoint without the `language_model.model.` prefix and the `.weight`
suffix; only the routed experts differ (stacked as w1, w2, w3). x is [B, L, H] throughout: B sequences,
L tokens, H the hidden size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import mxfp4
from .config import CONV_WIDTH, LORA_NORM_EPS, TinyConfig
from .functions import (
    CHUNK,
    ExpertRows,
    chunked_delta_rule,
    conv_silu,
    kda_gate,
    mix_and_norm,
    rms_norm,
    situ_glu,
)

_SIMILARITY_ROWS = 64
"""Tokens on which the experts of a layer are compared in training."""
_BRANCH_SCALE = 0.5
"""Output projections start at this share of the usual size, so that the residual stream starts clean."""


def _matrix(rows: int, columns: int, scale: float = 1.0) -> nn.Parameter:
    return nn.Parameter(torch.randn(rows, columns) * (scale * columns**-0.5))


def _experts(count: int, rows: int, columns: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(count, rows, columns) * columns**-0.5)


def _ones(size: int) -> nn.Parameter:
    return nn.Parameter(torch.ones(size))


class KimiDeltaAttention(nn.Module):
    """KDA: short convolution, L2-normalised q and k, bounded decay gate, delta rule, gated head norm."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        hidden, self.heads, self.dim = config.hidden_size, config.num_heads, config.head_dim
        self.width = self.heads * self.dim
        self.q_proj = _matrix(self.width, hidden)
        self.k_proj = _matrix(self.width, hidden)
        self.v_proj = _matrix(self.width, hidden)
        self.g_proj = _matrix(self.width, hidden)
        self.f_a_proj = _matrix(self.dim, hidden)
        self.f_b_proj = nn.Parameter(torch.randn(self.width, self.dim) * 0.05)
        self.b_proj = _matrix(self.heads, hidden)
        self.q_conv1d = self._conv()
        self.k_conv1d = self._conv()
        self.v_conv1d = self._conv()
        self.A_log = nn.Parameter(torch.zeros(self.heads))
        self.dt_bias = nn.Parameter(torch.empty(self.width).uniform_(-7, -1))
        self.o_norm = _ones(self.dim)
        self.o_proj = _matrix(hidden, self.width, _BRANCH_SCALE)
        self._make_copy_ready()

    def _conv(self) -> nn.Parameter:
        taps = torch.zeros(CONV_WIDTH)
        taps[-1] = 0.7
        return nn.Parameter(torch.randn(self.width, 1, CONV_WIDTH) * 0.1 + taps)

    @torch.no_grad()
    def _make_copy_ready(self) -> None:
        """Start half of the heads as induction heads: key from the previous token, long memory, v read back.

        Without it copying, on which recall and repetition rest, does not appear in short training. Head 0
        starts as a feature of the previous token.
        """
        half = self.width // 2
        self.q_proj[half:] = self.k_proj[half:]
        self.k_conv1d[half:, 0, -2] += 0.7
        self.k_conv1d[half:, 0, -1] -= 0.7
        self.o_proj[:, half:] = self.v_proj[half:].t()
        self.dt_bias[half:].uniform_(-10, -6)
        self.q_proj[: self.dim] = self.k_proj[: self.dim]
        self.v_conv1d[: self.dim, 0, -2] += 0.8
        self.v_conv1d[: self.dim, 0, -1] -= 0.6

    def _chunks(self, x: Tensor, dim: int) -> Tensor:
        """[B, L, h*dim] -> [B, h, L/16, 16, dim]."""
        batch, length, _ = x.shape
        return x.reshape(batch, length // CHUNK, CHUNK, self.heads, dim).permute(0, 3, 1, 2, 4)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        projections = torch.cat(
            [self.q_proj, self.k_proj, self.v_proj, self.g_proj, self.f_a_proj, self.b_proj]
        )
        qkv, gate, decay, beta = F.linear(x, projections).split(
            [3 * self.width, self.width, self.dim, self.heads], -1
        )
        qkv = conv_silu(qkv, torch.cat([self.q_conv1d, self.k_conv1d, self.v_conv1d]))
        q, k, v = (self._chunks(part, self.dim) for part in qkv.split(self.width, -1))
        z = F.linear(decay, self.f_b_proj, self.dt_bias)
        log_decay = kda_gate(self._chunks(z, self.dim), self.A_log.view(1, -1, 1, 1, 1))
        o = chunked_delta_rule(q, k, v, log_decay, self._chunks(torch.sigmoid(beta), 1))
        o = o.permute(0, 2, 3, 1, 4).reshape(batch, length, self.heads, self.dim)
        o = rms_norm(o, self.o_norm).reshape(batch, length, self.width) * torch.sigmoid(gate)
        return F.linear(o, self.o_proj)


class GatedMla(nn.Module):
    """Multi-head latent attention with an output gate and no positions (the "rope" part is not rotated)."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        hidden, self.heads = config.hidden_size, config.num_heads
        self.nope, self.rope, self.v_dim = (
            config.qk_nope_head_dim,
            config.qk_rope_head_dim,
            config.v_head_dim,
        )
        self.q_rank, self.kv_rank = config.q_lora_rank, config.kv_lora_rank
        self.width = self.heads * self.v_dim
        self.q_a_proj = _matrix(self.q_rank, hidden)
        self.q_a_layernorm = _ones(self.q_rank)
        self.q_b_proj = _matrix(self.heads * (self.nope + self.rope), self.q_rank)
        self.kv_a_proj_with_mqa = _matrix(self.kv_rank + self.rope, hidden)
        self.kv_a_layernorm = _ones(self.kv_rank)
        self.kv_b_proj = _matrix(self.heads * (self.nope + self.v_dim), self.kv_rank)
        self.g_proj = _matrix(self.width, hidden)
        self.o_proj = _matrix(hidden, self.width, _BRANCH_SCALE)

    def _heads_of(self, x: Tensor) -> Tensor:
        """[B, L, h*d] -> [B, h, L, d]."""
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        projections = torch.cat([self.q_a_proj, self.kv_a_proj_with_mqa, self.g_proj])
        low_q, latent, k_shared, gate = F.linear(x, projections).split(
            [self.q_rank, self.kv_rank, self.rope, self.width], -1
        )
        low_q = rms_norm(low_q, self.q_a_layernorm, LORA_NORM_EPS)
        latent = rms_norm(latent, self.kv_a_layernorm, LORA_NORM_EPS)
        q = self._heads_of(F.linear(low_q, self.q_b_proj))
        k_nope, v = self._heads_of(F.linear(latent, self.kv_b_proj)).split([self.nope, self.v_dim], -1)
        k_shared = k_shared.unsqueeze(1).expand(batch, self.heads, length, self.rope)
        o = F.scaled_dot_product_attention(q, torch.cat([k_nope, k_shared], -1), v, is_causal=True)
        o = o.transpose(1, 2).reshape(batch, length, self.width) * torch.sigmoid(gate)
        return F.linear(o, self.o_proj)


class SituMlp(nn.Module):
    """Dense SiTU-GLU: layer 0 and the shared expert."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.gate_proj = _matrix(width, hidden)
        self.up_proj = _matrix(width, hidden)
        self.down_proj = _matrix(hidden, width, _BRANCH_SCALE)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(situ_glu(F.linear(x, torch.cat([self.gate_proj, self.up_proj]))), self.down_proj)


class LatentMoe(nn.Module):
    """Sigmoid router with selection bias, experts on a latent of x, norm after the sum, shared expert."""

    gate_bias: Tensor
    load: Tensor

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        hidden, latent = config.hidden_size, config.latent_size
        width, self.num_experts = config.expert_width, config.num_experts
        self.per_token = config.experts_per_token
        self.gate = _matrix(self.num_experts, hidden)
        self.register_buffer("gate_bias", torch.zeros(self.num_experts))
        self.register_buffer("load", torch.zeros(self.num_experts), persistent=False)
        self.routed_expert_down_proj = _matrix(latent, hidden)
        self.routed_expert_norm = _ones(latent)
        self.routed_expert_up_proj = _matrix(hidden, latent, _BRANCH_SCALE)
        self.w1 = _experts(self.num_experts, width, latent)
        self.w3 = _experts(self.num_experts, width, latent)
        self.w2 = _experts(self.num_experts, latent, width)
        self.shared_experts = SituMlp(hidden, config.shared_experts * width)
        self.quantised = False
        self.similarity: Tensor | None = None
        """Of the last training pass: 1 if all experts give the same direction, 1/experts if none agree."""

    def _expert_weights(self) -> list[Tensor]:
        """w1, w3, w2; as MXFP4 stores them when `quantised`, gradients passing straight through."""
        weights: list[Tensor] = [self.w1, self.w3, self.w2]
        if self.quantised:
            weights = [w + (mxfp4.round_trip(w) - w).detach() for w in weights]
        return weights

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        logits = F.linear(x, self.gate)
        with torch.no_grad():
            chosen = (torch.sigmoid(logits) + self.gate_bias).topk(self.per_token, -1).indices
            rows = ExpertRows(chosen, self.num_experts)
            if self.training:
                self.load += rows.load
        weights = torch.sigmoid(logits.gather(1, chosen))
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        w1, w3, w2 = self._expert_weights()
        gate_up, down = torch.cat([w1, w3], 1).transpose(1, 2), w2.transpose(1, 2)
        latent = F.linear(x, self.routed_expert_down_proj)
        if self.training:
            sample = latent[:: -(-len(x) // _SIMILARITY_ROWS)].detach()
            directions = F.normalize(torch.matmul(situ_glu(torch.matmul(sample, gate_up)), down), dim=-1)
            self.similarity = directions.mean(0).square().sum(-1).mean()
        inner = situ_glu(torch.bmm(rows.dispatch(latent), gate_up))
        routed = rows.combine(torch.bmm(inner, down), weights)
        routed = F.linear(rms_norm(routed, self.routed_expert_norm), self.routed_expert_up_proj)
        return (routed + self.shared_experts(x)).view(shape)


class Layer(nn.Module):
    """One layer's weights; the residual wiring lies in `TinyK3.forward`."""

    def __init__(self, config: TinyConfig, index: int) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.input_layernorm = _ones(hidden)
        self.post_attention_layernorm = _ones(hidden)
        self.self_attention_res_norm = _ones(hidden)
        self.mlp_res_norm = _ones(hidden)
        self.self_attention_res_proj = nn.Parameter(torch.zeros(hidden))
        self.mlp_res_proj = nn.Parameter(torch.zeros(hidden))
        self.self_attn = GatedMla(config) if config.is_full_attention(index) else KimiDeltaAttention(config)
        if index == 0:
            self.mlp = SituMlp(hidden, config.dense_width)
        else:
            self.block_sparse_moe = LatentMoe(config)

    def feed_forward(self, x: Tensor) -> Tensor:
        """The dense MLP of layer 0 or the MoE of the others."""
        module = self.mlp if hasattr(self, "mlp") else self.block_sparse_moe
        result: Tensor = module(x)
        return result


class TinyK3(nn.Module):
    """The whole model. The head starts as a tenth of the embedding: copied tokens are readable at once."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.config = config
        hidden = config.hidden_size
        self.embed_tokens = nn.Parameter(torch.randn(config.vocab_size, hidden) * 0.5)
        self.lm_head = nn.Parameter(self.embed_tokens.detach() * 0.1)
        self.norm = _ones(hidden)
        self.output_attn_res_norm = _ones(hidden)
        self.output_attn_res_proj = nn.Parameter(torch.zeros(hidden))
        self.layers = nn.ModuleList(Layer(config, index) for index in range(config.num_layers))

    def forward(self, ids: Tensor) -> Tensor:
        """ids [B, L] -> the head's input [B, L, H]. Works on whole sequences from an empty state."""
        length = ids.shape[1]
        running: Tensor | None = F.pad(F.embedding(ids, self.embed_tokens), (0, 0, 0, -length % CHUNK))
        blocks: list[Tensor] = []
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, Layer) and running is not None
            if blocks:
                query = layer.self_attention_res_norm * layer.self_attention_res_proj
                x = mix_and_norm([*blocks, running], query, layer.input_layernorm)
            else:
                x = rms_norm(running, layer.input_layernorm)
            if index % self.config.attn_res_block_size == 0:
                blocks.append(running)
                running = None
            attended: Tensor = layer.self_attn(x)
            running = attended if running is None else running + attended
            query = layer.mlp_res_norm * layer.mlp_res_proj
            x = mix_and_norm([*blocks, running], query, layer.post_attention_layernorm)
            running = running + layer.feed_forward(x)
        assert running is not None
        query = self.output_attn_res_norm * self.output_attn_res_proj
        return mix_and_norm([*blocks, running], query, self.norm)[:, :length]

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., H] -> [..., vocabulary]."""
        return F.linear(hidden, self.lm_head)

    def moe_layers(self) -> list[LatentMoe]:
        """The MoE modules in layer order."""
        return [module for module in self.modules() if isinstance(module, LatentMoe)]
