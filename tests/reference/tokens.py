"""Token sequences on which engines of lower precision can be compared with the reference."""

from __future__ import annotations

import copy

import numpy as np
from numpy.typing import NDArray

from .checkpoint import Array
from .model import ReferenceModel


def separated_tokens(model: ReferenceModel, count: int, seed: int, margin: float = 1e-3) -> NDArray[np.int64]:
    """`count` random token ids along which no router decision is closer than `margin`.

    A router score within rounding error of the next one makes two right engines pick different experts,
    after which their logits differ by whole units. Each token is drawn anew until every MoE layer selects
    its experts with at least `margin` between the last selected and the first rejected score.
    """
    random = np.random.default_rng(seed)
    state = model.new_state()
    tokens: list[int] = []
    while len(tokens) < count:
        candidate = int(random.integers(model.n_vocab))
        tried = copy.deepcopy(state)
        trace: dict[str, Array] = {}
        model.step([candidate], tried, trace=trace)
        margins = [float(value[0]) for name, value in trace.items() if name.endswith(".router_margin")]
        if min(margins, default=np.inf) >= margin:
            tokens.append(candidate)
            state = tried
    return np.array(tokens)
