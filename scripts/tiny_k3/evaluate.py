"""Exact-match accuracy per task on unseen instances, and ablations of the routed experts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from .batches import pad_sequences
from .bpe import Tokenizer
from .config import END_OF_MESSAGE
from .dialogues import TASKS, DialogueGenerator
from .model import TinyK3
from .xtml import encode, last_answer_start

_BATCH = 12


@dataclass(frozen=True)
class Failure:
    """A wrong answer: what was wanted, and the model's choice at each position after the right prefix."""

    task: str
    wanted: str
    found: str


def instances(
    tokenizer: Tokenizer, task: str, count: int, seed: str, efforts: Sequence[str]
) -> list[tuple[list[int], int]]:
    """`count` unseen instances as (ids, index of the answer's first token); efforts take turns."""
    generator = DialogueGenerator(f"{seed}-{task}", training=False)
    result = []
    for i in range(count):
        ids, targets = encode(generator.instance(task, efforts[i % len(efforts)]), tokenizer)
        result.append((ids, last_answer_start(targets)))
    return result


@torch.no_grad()
def accuracy(
    model: TinyK3,
    tokenizer: Tokenizer,
    task: str,
    count: int,
    seed: str,
    efforts: Sequence[str],
    failures: list[Failure] | None = None,
) -> float:
    """Share of instances whose whole last assistant turn (think, response, calls) is produced exactly.

    The best token is compared at every position of the right answer. That is the same as greedy decoding:
    as long as all earlier choices are right, both see the same prefix.
    """
    cases = instances(tokenizer, task, count, seed, efforts)
    right = 0
    for first in range(0, count, _BATCH):
        group = cases[first : first + _BATCH]
        hidden = model(pad_sequences([ids for ids, _ in group], max(len(ids) for ids, _ in group)))
        for row, (ids, start) in zip(hidden, group, strict=True):
            found = model.logits(row[start - 1 : len(ids) - 1]).argmax(-1).tolist()
            right += found == ids[start:]
            if failures is not None and found != ids[start:]:
                failures.append(Failure(task, tokenizer.decode(ids[start:]), tokenizer.decode(found)))
    return right / count


def accuracies(
    model: TinyK3, tokenizer: Tokenizer, count: int, seed: str, efforts: Sequence[str]
) -> tuple[dict[str, float], list[Failure]]:
    """Accuracy of every task, and the failures."""
    failures: list[Failure] = []
    rates = {task: accuracy(model, tokenizer, task, count, seed, efforts, failures) for task in TASKS}
    return rates, failures


@torch.no_grad()
def greedy(model: TinyK3, prompt: list[int], limit: int = 160) -> list[int]:
    """Greedy continuation including the end of the message; runs the whole sequence for each token."""
    ids = list(prompt)
    while len(ids) < len(prompt) + limit and ids[-1:] != [END_OF_MESSAGE]:
        ids.append(int(model.logits(model(torch.tensor([ids]))[0, -1]).argmax()))
    return ids[len(prompt) :]


@torch.no_grad()
def without_routed_experts(model: TinyK3) -> TinyK3:
    """A copy whose MoE layers give the shared expert's part only."""
    changed = copy.deepcopy(model)
    for moe in changed.moe_layers():
        moe.routed_expert_up_proj.zero_()
    return changed


@torch.no_grad()
def with_rolled_experts(model: TinyK3) -> TinyK3:
    """A copy in which every chosen expert is replaced by its neighbour, weights and router unchanged."""
    changed = copy.deepcopy(model)
    for moe in changed.moe_layers():
        for weight in (moe.w1, moe.w2, moe.w3):
            weight.copy_(weight.roll(1, 0))
    return changed


@torch.no_grad()
def with_one_layer_rolled(model: TinyK3) -> TinyK3:
    """A copy with the neighbour's experts in the middle MoE layer only."""
    changed = copy.deepcopy(model)
    moe = changed.moe_layers()[len(changed.moe_layers()) // 2]
    for weight in (moe.w1, moe.w2, moe.w3):
        weight.copy_(weight.roll(1, 0))
    return changed


ABLATIONS: dict[str, Callable[[TinyK3], TinyK3]] = {
    "intact": lambda model: model,
    "no routed experts": without_routed_experts,
    "experts rolled by one": with_rolled_experts,
    "one layer rolled": with_one_layer_rolled,
}
