"""Timings in the form that llama.cpp prints them: prompt and answer apart."""

from __future__ import annotations

from ..context import Counters, Phase


def perf_lines(counters: Counters, load_ms: float, total_ms: float, verbose: bool = False) -> list[str]:
    """The lines of llama_perf_context_print. `total_ms` runs from the start of the program.

    `verbose`: also the graphs built, and the time of prompt and answer by kind of layer.
    """
    prompt, answer = counters.prefill, counters.decode
    name = "llama_perf_context_print:"
    prompt_rates, answer_rates = _rates(prompt.ms, prompt.tokens), _rates(answer.ms, answer.tokens)
    lines = [
        f"{name}        load time = {load_ms:10.2f} ms",
        f"{name} prompt eval time = {prompt.ms:10.2f} ms / {prompt.tokens:5d} tokens {prompt_rates}",
        f"{name}        eval time = {answer.ms:10.2f} ms / {answer.tokens:5d} runs   {answer_rates}",
        f"{name}       total time = {total_ms:10.2f} ms / {prompt.tokens + answer.tokens:5d} tokens",
        f"{name}    graphs reused = {counters.graphs_reused:10d}",
    ]
    if verbose:
        lines.append(f"{name}     graphs built = {counters.graphs_built:10d}")
        lines += [
            f"{name} {part} {_kinds(phase)}"
            for part, phase in (("prompt by layer:", prompt), ("answer by layer:", answer))
        ]
    return lines


def _kinds(phase: Phase) -> str:
    tokens = max(phase.tokens, 1)
    return ", ".join(f"{kind} {ms / tokens:.3f} ms" for kind, ms in phase.kinds.items()) + " per token"


def _rates(ms: float, tokens: int) -> str:
    per_token = ms / tokens if tokens else 0.0
    per_second = 1e3 * tokens / ms if ms else 0.0
    return f"({per_token:8.2f} ms per token, {per_second:8.2f} tokens per second)"
