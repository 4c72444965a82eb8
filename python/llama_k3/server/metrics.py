"""The engine's sums in Prometheus's form: llama.cpp's names with its prefix, the cache's with our own."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from .engine.engine import Engine, EngineStats

Family = CounterMetricFamily | GaugeMetricFamily


class EngineCollector(Collector):
    """Reads the engine when it is asked."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Family]:
        stats = self._engine.stats()
        yield from _llamacpp(stats)
        yield from _cache(stats)


def _counter(name: str, text: str, value: float) -> Family:
    return CounterMetricFamily(name, text, value=value)


def _gauge(name: str, text: str, value: float) -> Family:
    return GaugeMetricFamily(name, text, value=value)


def _ratio(total: float, parts: float) -> float:
    return total / parts if parts > 0 else 0.0


def _llamacpp(stats: EngineStats) -> Iterator[Family]:
    yield _counter("llamacpp:prompt_tokens", "Prompt tokens processed.", stats.prompt_tokens)
    yield _counter("llamacpp:prompt_seconds", "Seconds of prompt processing.", stats.prompt_seconds)
    yield _counter("llamacpp:tokens_predicted", "Tokens generated.", stats.predicted_tokens)
    yield _counter("llamacpp:tokens_predicted_seconds", "Seconds of generation.", stats.predicted_seconds)
    yield _counter("llamacpp:n_decode", "Batches computed.", stats.decode_calls)
    yield _gauge("llamacpp:n_tokens_max", "Most tokens that a slot has held.", stats.n_tokens_max)
    yield _gauge(
        "llamacpp:prompt_tokens_seconds",
        "Average prompt throughput in tokens/s.",
        _ratio(stats.prompt_tokens, stats.prompt_seconds),
    )
    yield _gauge(
        "llamacpp:predicted_tokens_seconds",
        "Average generation throughput in tokens/s.",
        _ratio(stats.predicted_tokens, stats.predicted_seconds),
    )
    yield _gauge(
        "llamacpp:n_busy_slots_per_decode",
        "Average number of busy slots of a batch.",
        _ratio(stats.busy_slots, stats.decode_calls),
    )
    yield _gauge("llamacpp:requests_processing", "Requests in slots.", stats.requests_processing)
    yield _gauge("llamacpp:requests_deferred", "Requests that wait for a slot.", stats.requests_deferred)


def _cache(stats: EngineStats) -> Iterator[Family]:
    yield _counter("llama_k3:cache_hits", "Requests that reused a prefix.", stats.cache_hits)
    yield _counter("llama_k3:cache_misses", "Requests that reused nothing.", stats.cache_misses)
    yield _counter("llama_k3:cached_tokens", "Prompt tokens reused.", stats.cached_tokens)
    yield _gauge("llama_k3:cache_ram_bytes", "Memory of parked sequences.", stats.cache_ram_bytes)
    yield _gauge("llama_k3:cache_ram_limit_bytes", "Most of it (--cache-ram).", stats.cache_ram_limit)
    yield _gauge("llama_k3:cache_disk_bytes", "Bytes in --cache-disk.", stats.cache_disk_bytes)
    yield _gauge("llama_k3:cache_entries", "Parked sequences.", stats.cache_entries)
