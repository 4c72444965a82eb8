"""The training loop: one-threaded data-parallel processes, a schedule over wall time, checkpoints."""

from __future__ import annotations

import dataclasses
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, multiprocessing

from .batches import Batch, batches
from .bpe import Tokenizer, train_ranks
from .config import TinyConfig
from .dialogues import EFFORTS, TASKS, DialogueGenerator
from .evaluate import accuracy
from .export import load_hf
from .model import TinyK3
from .optim import HybridOptimizer
from .xtml import render

_WARMUP_STEPS = 40
_FINAL_LR = 0.02
_LOSS_TOKENS = 700.0
"""Divisor of the summed loss, about the targets in a batch; fixed, so that all tokens weigh the same."""
_BIAS_STEP = 0.006
"""Step of the router's selection bias towards an even load."""
_SIMILARITY_WEIGHT = 0.06
"""Loss on the agreement of a layer's experts; without it they become alike and a wrong one goes unseen."""
_COPY_SHARE = ((0.0, 1.0), (0.04, 1.0), (0.07, 0.3), (0.3, 0.06), (0.6, 0.04))
"""Share of copy sequences over training time (linear between the points)."""
_BPE_DIALOGUES = 4000
_REPORT_STEPS = 50
_MONITOR_SEED = 777
_CHECKPOINT = "checkpoint.pt"


@dataclass(frozen=True)
class TrainOptions:
    """What one run does. Learning rates fall linearly to almost nothing in the last `decay` of the time."""

    out: Path
    minutes: float = 75
    init: Path | None = None
    processes: int = 2
    seed: int = 1
    tokens: int = 1536
    max_length: int = 640
    muon_lr: float = 0.012
    adam_lr: float = 0.003
    decay: float = 0.5
    quantise_from: float = 0.85
    other_weight: float = 0.1
    monitor_steps: int = 500


def save_run(directory: Path, model: TinyK3) -> None:
    """Write the fp32 training checkpoint, replacing the previous one when complete."""
    temporary = directory / (_CHECKPOINT + ".tmp")
    torch.save({"config": dataclasses.asdict(model.config), "model": model.state_dict()}, temporary)
    os.replace(temporary, directory / _CHECKPOINT)


def load_run(directory: Path) -> TinyK3:
    """The model of a training directory or, where that has no training checkpoint, of an exported one."""
    path = directory / _CHECKPOINT
    if not path.exists():
        return load_hf(directory)
    stored = torch.load(path, weights_only=True)
    model = TinyK3(TinyConfig(**stored["config"]))
    model.load_state_dict(stored["model"])
    return model


def make_tokenizer() -> Tokenizer:
    """The tokenizer trained on dialogues of the training split."""
    generator = DialogueGenerator("tokenizer")
    dialogues = (generator.conversation(generator.random.randint(2, 6)) for _ in range(_BPE_DIALOGUES))
    return Tokenizer(train_ranks(part for d in dialogues for part, _ in render(d) if isinstance(part, str)))


def train(options: TrainOptions, config: TinyConfig) -> None:
    """Run all processes to the end. With `init`, config and tokenizer come from there."""
    options.out.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.load(options.init) if options.init else make_tokenizer()
    tokenizer.save(options.out)
    # Each process is one thread; big tensors stay in the heap instead of being mapped anew every step.
    os.environ.update(
        OMP_NUM_THREADS="1", MALLOC_MMAP_THRESHOLD_="2000000000", MALLOC_TRIM_THRESHOLD_="8000000000"
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    multiprocessing.spawn(_worker, args=(options, config, port), nprocs=options.processes)


def _worker(rank: int, options: TrainOptions, config: TinyConfig, port: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=options.processes)
    model = load_run(options.init) if options.init else TinyK3(config)
    Trainer(model, Tokenizer.load(options.out), options, rank).run()
    dist.destroy_process_group()


class Trainer:
    """One process's part of a run; all processes hold the same weights."""

    def __init__(self, model: TinyK3, tokenizer: Tokenizer, options: TrainOptions, rank: int = 0) -> None:
        self.model, self.options, self._rank, self._tokenizer = model.train(), options, rank, tokenizer
        self._parameters = list(model.parameters())
        world = options.processes
        self._optimizer = HybridOptimizer(model, options.muon_lr, options.adam_lr, rank, world)
        self._batches = batches(
            tokenizer,
            f"{options.seed}-{rank}",
            options.tokens,
            options.max_length,
            options.other_weight,
            self._copy_share,
        )
        self._started = time.monotonic()
        self._progress = 0.0
        self._steps = 0
        self._tokens = 0
        self._loss = self._hits = 0.0

    def run(self) -> None:
        """Train until the time is used up; report, measure and save on the way."""
        self._say(f"{sum(p.numel() for p in self._parameters):,} parameters; {self.options}")
        while self._progress < 1:
            self.step(next(self._batches))
            if self._steps % _REPORT_STEPS == 0:
                self._report()
            if self._steps % self.options.monitor_steps == 0 or self._progress >= 1:
                self._monitor()
                if self._rank == 0:
                    save_run(self.options.out, self.model)

    def step(self, batch: Batch) -> float:
        """One optimiser step; returns the mean loss of the target tokens over all processes."""
        moe_layers = self.model.moe_layers()
        for moe in moe_layers:
            moe.quantised = self._progress >= self.options.quantise_from
        used = batch.weights > 0
        targets, weights = batch.targets[used], batch.weights[used]
        logits = self.model.logits(self.model(batch.inputs)[used])
        losses = F.cross_entropy(logits, targets, reduction="none")
        loss: Tensor = (losses * weights).sum() / (_LOSS_TOKENS * self.options.processes / 2)
        similarities = [moe.similarity for moe in moe_layers if moe.similarity is not None]
        similarity = torch.stack(similarities)
        (loss + _SIMILARITY_WEIGHT / self.options.processes * similarity.sum()).backward()
        answers = weights > 0.5
        hits = (logits[answers].argmax(-1) == targets[answers]).sum()
        elapsed = time.monotonic() - self._started if self._rank == 0 else 0.0
        counts = [
            float(losses.detach()[answers].sum()),
            float(hits),
            float(answers.sum()),
            batch.inputs.numel(),
            elapsed,
        ]
        total_loss, total_hits, answered, tokens, elapsed = self._reduce(counts)
        lr_factor = self._lr_factor()
        for moe in moe_layers:
            moe.gate_bias += _BIAS_STEP * lr_factor * torch.sign(moe.load.mean() - moe.load)
            moe.load.zero_()
        self._optimizer.step(lr_factor)
        self._steps += 1
        self._tokens += int(tokens)
        self._progress = elapsed / (self.options.minutes * 60)
        blend = 0.05 if self._steps > 1 else 1.0
        self._loss += blend * (total_loss / answered - self._loss)
        self._hits += blend * (total_hits / answered - self._hits)
        return total_loss / answered

    @torch.no_grad()
    def _reduce(self, counts: list[float]) -> list[float]:
        """Sum gradients, expert loads and `counts` over the processes in one message."""
        loads = [moe.load for moe in self.model.moe_layers()]
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        tensors = [p.grad for p in self._parameters if p.grad is not None] + loads
        if self.options.processes == 1:
            return counts
        flat = torch.cat([t.reshape(-1) for t in tensors] + [torch.tensor(counts)])
        dist.all_reduce(flat)
        *parts, summed = flat.split([t.numel() for t in tensors] + [len(counts)])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))
        return [float(x) for x in summed]

    def _lr_factor(self) -> float:
        warm = min(1.0, (self._steps + 1) / _WARMUP_STEPS)
        return warm * min(1.0, max(_FINAL_LR, (1 - self._progress) / self.options.decay))

    def _copy_share(self) -> float:
        """Copy sequences' share now; a continued run stays at the final share."""
        if self.options.init:
            return _COPY_SHARE[-1][1]
        for (x0, y0), (x1, y1) in zip(_COPY_SHARE, _COPY_SHARE[1:], strict=False):
            if self._progress < x1:
                return y0 + (y1 - y0) * (self._progress - x0) / (x1 - x0)
        return _COPY_SHARE[-1][1]

    def _report(self) -> None:
        minutes = (time.monotonic() - self._started) / 60
        self._say(
            f"step {self._steps} | {minutes:.1f} min | {self._tokens / 1e6:.2f}M tokens | "
            f"lr x{self._lr_factor():.2f} | loss {self._loss:.4f} | next token {self._hits:.4f}"
        )

    def _monitor(self) -> None:
        """Accuracy per task on a few unseen instances, half of them on each process."""
        self.model.eval()
        count = 48 // self.options.processes
        seed = f"{_MONITOR_SEED}-{self._rank}"
        rates = [accuracy(self.model, self._tokenizer, task, count, seed, EFFORTS) for task in TASKS]
        total = torch.tensor(rates) / self.options.processes
        if self.options.processes > 1:
            dist.all_reduce(total)
        self.model.train()
        shown = " ".join(f"{task} {float(rate):.2f}" for task, rate in zip(TASKS, total, strict=True))
        self._say(f"  accuracy: {shown}")

    def _say(self, text: str) -> None:
        if self._rank == 0:
            print(text, flush=True)
            with open(self.options.out / "log.txt", "a", encoding="utf-8") as log:
                log.write(text + "\n")
