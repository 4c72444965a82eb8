"""Training batches: padded dialogues of similar length, mixed with random sequences to be copied."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .bpe import Tokenizer
from .config import BASE_RANKS, PAD, SPECIAL_TOKENS
from .dialogues import DialogueGenerator
from .functions import CHUNK
from .xtml import encode

_POOL = 192
"""Sequences that are drawn together and sorted by length, so that little is padded."""
_TURNS = (1, 2, 2, 3, 3, 4, 4, 5, 6, 8)
_COPY_LENGTH = 96
_FIRST_TEXT_TOKEN = 32
_SEP = SPECIAL_TOKENS["<|sep|>"]

Sequence = tuple[list[int], list[bool]]
"""Token ids and which of them are targets."""


@dataclass(frozen=True)
class Batch:
    """Inputs and next tokens [B, L] and each next token's loss weight (1 target, 0 padding)."""

    inputs: Tensor
    targets: Tensor
    weights: Tensor


def copy_sequence(rng: random.Random) -> Sequence:
    """Random tokens again and again, or keys with values to be recalled: a dense lesson in copying.

    Half of the sequences use ten tokens only, so that the token before does not tell where to go on.
    """
    tokens = range(_FIRST_TEXT_TOKEN, BASE_RANKS)
    pool = rng.sample(tokens, rng.choice((10, len(tokens))))
    ids: list[int] = []
    targets: list[bool] = []
    if rng.random() < 0.5:
        phrase = [rng.choice(pool) for _ in range(rng.randint(3, 24))] + [_SEP]
        while len(ids) < _COPY_LENGTH:
            targets += [bool(ids)] * len(phrase)
            ids += phrase
        return ids[:_COPY_LENGTH], targets[:_COPY_LENGTH]
    keys = rng.sample(tokens, 8)
    pairs = [(key, [rng.choice(pool) for _ in range(rng.randint(1, 5))]) for key in keys]
    for key, value in pairs:
        ids += [key, *value, _SEP]
    targets = [False] * len(ids)
    while len(ids) < _COPY_LENGTH:
        key, value = rng.choice(pairs)
        ids += [key, *value, _SEP]
        targets += [False] + [True] * (len(value) + 1)
    return ids[:_COPY_LENGTH], targets[:_COPY_LENGTH]


def pad_sequences(sequences: list[list[int]], length: int) -> Tensor:
    """[B, length] of token ids, padded at the end."""
    padded = torch.full((len(sequences), length), PAD)
    for row, ids in zip(padded, sequences, strict=True):
        row[: len(ids)] = torch.tensor(ids)
    return padded


def make_batch(sequences: list[Sequence], other_weight: float) -> Batch:
    """One batch, padded to a multiple of the KDA chunk; tokens that are no targets weigh `other_weight`."""
    length = -(-max(len(ids) - 1 for ids, _ in sequences) // CHUNK) * CHUNK
    weights = torch.zeros(len(sequences), length)
    for row, (_, targets) in zip(weights, sequences, strict=True):
        row[: len(targets) - 1] = torch.where(torch.tensor(targets[1:]), 1.0, other_weight)
    inputs = pad_sequences([ids[:-1] for ids, _ in sequences], length)
    return Batch(inputs, pad_sequences([ids[1:] for ids, _ in sequences], length), weights)


def batches(
    tokenizer: Tokenizer,
    seed: str,
    tokens: int,
    max_length: int,
    other_weight: float,
    copy_share: Callable[[], float],
) -> Iterator[Batch]:
    """Endless batches of about `tokens` padded tokens; `copy_share` is asked anew for each pool."""
    rng = random.Random(seed)
    generator = DialogueGenerator(seed)
    while True:
        copies = round(copy_share() * _POOL)
        pool = [copy_sequence(rng) for _ in range(copies)]
        while len(pool) < _POOL:
            sequence = encode(generator.conversation(rng.choice(_TURNS)), tokenizer)
            if len(sequence[0]) <= max_length:
                pool.append(sequence)
        yield from _cut(pool, rng, tokens, other_weight)


def _cut(pool: list[Sequence], rng: random.Random, tokens: int, other_weight: float) -> Iterator[Batch]:
    """Groups of similar length in random order; the group of left-over short ones is dropped."""
    pool.sort(key=lambda sequence: len(sequence[0]))
    groups: list[list[Sequence]] = []
    while pool:
        size = min(len(pool), max(1, tokens // len(pool[-1][0])))
        groups.append(pool[-size:])
        del pool[-size:]
    groups = groups[:-1] or groups
    rng.shuffle(groups)
    for group in groups:
        yield make_batch(group, other_weight)
