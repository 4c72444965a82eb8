"""The whole model: embedding, layers with plain or attention residuals, head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .checkpoint import Array, Checkpoint
from .config import parse_config
from .ffn import dense_mlp, moe
from .functions import linear, rms_norm, softmax
from .kda import KdaState, kda_layer, new_kda_state
from .mla import MlaState, mla_layer, new_mla_state


@dataclass
class State:
    """One sequence: its layers' states and the number of tokens seen."""

    layers: list[KdaState | MlaState]
    position: int = 0


def mix(blocks: list[Array], running: Array, query: Array, eps: float) -> Array:
    """Attention residual over depth, per token: stored block sums and the running sum, all [T, H] -> [T, H].

    The keys are the normed sources, the values the raw ones; the scores have no 1/sqrt(H).
    """
    sources = np.stack([*blocks, running])
    scores = rms_norm(sources, query, eps).sum(axis=-1)
    return np.einsum("bt,bth->th", softmax(scores, axis=0), sources)


class ReferenceModel:
    """A Kimi-K3 or Kimi-Linear checkpoint folder, evaluated in float64.

    Raises KeyError for a tensor that is missing when it is needed, ValueError for an unknown config.
    """

    def __init__(self, path: str | Path) -> None:
        self.checkpoint = Checkpoint(path)
        self.config = parse_config(self.checkpoint.text_config)
        self.n_vocab: int = self.checkpoint.text_config["vocab_size"]

    def new_state(self) -> State:
        taps = self.checkpoint.text_config["linear_attn_config"]["short_conv_kernel_size"]
        is_kda = [self.config.layer_kind(layer) == "kda" for layer in range(self.config.num_layers)]
        return State(
            [new_kda_state(self.config, taps) if kda else new_mla_state(self.config) for kda in is_kda]
        )

    def forward(
        self,
        tokens: Sequence[int] | NDArray[np.integer],
        kda: str = "recurrent",
        mla: str = "absorbed",
        trace: dict[str, Array] | None = None,
    ) -> Array:
        """Logits [T, vocab] of a whole sequence."""
        return self.step(tokens, self.new_state(), kda, mla, trace)

    def step(
        self,
        tokens: Sequence[int] | NDArray[np.integer],
        state: State,
        kda: str = "recurrent",
        mla: str = "absorbed",
        trace: dict[str, Array] | None = None,
    ) -> Array:
        """Logits [T, vocab] of the next T tokens of a sequence; `state` moves on by T tokens.

        kda: "recurrent" or "chunked"; mla: "plain" or "absorbed": the same results by two ways.
        trace: filled with `L.attn_in`, `L.attn_out`, `L.ffn_in`, `L.ffn_out` [T, H] (inputs after the norm)
            and in MoE layers `L.experts`, `L.expert_weights` [T, k], `L.router_margin` [T] of every layer
            L, and `head_in` [T, H].
        """
        trace = {} if trace is None else trace
        hidden = self.checkpoint.tensor("model.embed_tokens.weight")[np.asarray(tokens, dtype=np.int64)]
        if self.config.attn_res_block:
            hidden = self._attention_residual_layers(hidden, state, kda, mla, trace)
        else:
            hidden = self._plain_residual_layers(hidden, state, kda, mla, trace)
        state.position += len(hidden)
        trace["head_in"] = self._norm(hidden, "model.norm.weight")
        return linear(trace["head_in"], self.checkpoint.tensor("lm_head.weight"))

    def _plain_residual_layers(
        self, hidden: Array, state: State, kda: str, mla: str, trace: dict[str, Array]
    ) -> Array:
        for layer in range(self.config.num_layers):
            hidden = hidden + self._attention(layer, hidden, state, kda, mla, trace)
            hidden = hidden + self._ffn(layer, hidden, trace)
        return hidden

    def _attention_residual_layers(
        self, running: Array, state: State, kda: str, mla: str, trace: dict[str, Array]
    ) -> Array:
        """`running` starts as the embedding. At each block start the raw running sum is stored and a new one
        begins with the attention output, so blocks reach later layers only through `mix`."""
        assert self.config.attn_res_block
        blocks: list[Array] = []
        for layer in range(self.config.num_layers):
            base = f"model.layers.{layer}."
            mixed = self._mix(blocks, running, base + "self_attention_res") if blocks else running
            starts_block = layer % self.config.attn_res_block == 0
            if starts_block:
                blocks.append(running)
            out = self._attention(layer, mixed, state, kda, mla, trace)
            running = out if starts_block else running + out
            mixed = self._mix(blocks, running, base + "mlp_res")
            running = running + self._ffn(layer, mixed, trace)
        return self._mix(blocks, running, "model.output_attn_res")

    def _mix(self, blocks: list[Array], running: Array, name: str) -> Array:
        norm = self.checkpoint.tensor(f"{name}_norm.weight")
        query = norm * self.checkpoint.tensor(f"{name}_proj.weight").reshape(-1)
        return mix(blocks, running, query, self.config.rms_norm_eps)

    def _attention(
        self, layer: int, hidden: Array, state: State, kda: str, mla: str, trace: dict[str, Array]
    ) -> Array:
        base = f"model.layers.{layer}."
        x = self._norm(hidden, base + "input_layernorm.weight")
        weight = self.checkpoint.under(base + "self_attn.")
        layer_state = state.layers[layer]
        if isinstance(layer_state, KdaState):
            out = kda_layer(x, weight, self.config, layer_state, kda)
        else:
            out = mla_layer(x, weight, self.config, layer_state, mla)
        trace[f"{layer}.attn_in"], trace[f"{layer}.attn_out"] = x, out
        return out

    def _ffn(self, layer: int, hidden: Array, trace: dict[str, Array]) -> Array:
        base = f"model.layers.{layer}."
        x = self._norm(hidden, base + "post_attention_layernorm.weight")
        if layer < self.config.num_dense_layers:
            out = dense_mlp(x, self.checkpoint.under(base + "mlp."), self.config)
        else:
            routing: dict[str, Array] = {}
            out = moe(x, self.checkpoint.under(base + "block_sparse_moe."), self.config, routing)
            trace.update({f"{layer}.{name}": value for name, value in routing.items()})
        trace[f"{layer}.ffn_in"], trace[f"{layer}.ffn_out"] = x, out
        return out

    def _norm(self, x: Array, name: str) -> Array:
        return rms_norm(x, self.checkpoint.tensor(name), self.config.rms_norm_eps)
