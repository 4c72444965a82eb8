"""The flags and variables of llama-server: one table, errors that say why, nothing ignored."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from llama_k3.cli.server import _engine_options, _server_options
from llama_k3.server.flag_table import FLAGS
from llama_k3.server.flags import build_parser, parse
from llama_k3.server.refused import REFUSED, REFUSED_VARIABLES

MODEL = ("-m", "x.gguf")


def read(*argv: str, env: dict[str, str] | None = None) -> argparse.Namespace:
    return parse([*MODEL, *argv], env or {}, "version")


def refused(
    capsys: pytest.CaptureFixture[str], argv: Sequence[str], env: dict[str, str] | None = None
) -> str:
    """The one line of an error, with status 2."""
    with pytest.raises(SystemExit) as end:
        parse(argv, env or {}, "version")
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    return line


def test_defaults_are_llamacpps() -> None:
    args = read()
    assert (args.host, args.port, args.ctx_size, args.n_predict) == ("127.0.0.1", 8080, 0, -1)
    assert (args.temp, args.top_k, args.top_p, args.min_p) == (0.8, 40, 0.95, 0.05)
    assert (args.timeout, args.ubatch_size, args.slots, args.webui) == (3600, 512, True, True)
    assert not args.metrics and not args.props and args.api_key is None
    options = _server_options(args)
    assert options.loopback and options.api_keys == () and options.thinking and options.sampling.seed is None
    engine = _engine_options(args, 4096)
    assert (engine.n_ctx, engine.n_parallel, engine.n_ubatch, engine.kv_type) == (4096, 4, 512, "bf16")
    assert engine.cache_ram == 8192 << 20 and engine.cache_disk is None


def test_flags_reach_their_options() -> None:
    args = read(
        *("-c", "2048", "-np", "2", "-b", "64", "-ctk", "f16", "-ctv", "f16", "-cram", "-1", "-cms", "9"),
        *("--cache-disk", "d", "--cache-disk-size", "3", "--snapshot-every", "77", "--no-slots", "--props"),
        *("--api-key", "a,b", "--api-key", "c", "--api-prefix", "/x/", "-to", "5", "--no-cache-prompt"),
        *("--reasoning", "off", "--reasoning-effort", "medium", "--reasoning-budget", "8", "-s", "3"),
        *("--samplers", "top_k;temperature", "--host", "0.0.0.0", "--no-webui", "--metrics"),
    )
    engine = _engine_options(args, 4096)
    assert (engine.n_ctx, engine.n_parallel, engine.n_ubatch, engine.kv_type) == (2048, 2, 64, "f16")
    assert engine.cache_ram > 1 << 40 and engine.snapshot_min_step == 9 and engine.snapshot_every == 77
    assert engine.cache_disk == Path("d") and engine.cache_disk_size == 3 << 20
    options = _server_options(args)
    assert options.api_keys == ("a", "b", "c") and options.api_prefix == "/x" and options.request_timeout == 5
    assert not options.slots and options.props and options.metrics and not options.webui
    assert not options.cache_prompt and not options.thinking and options.reasoning_effort == "high"
    assert options.reasoning_budget == 8 and not options.loopback
    assert options.sampling.seed == 3 and options.sampling.top_p == 1 and options.sampling.temperature == 0.8


def test_variables_count_where_the_flag_is_not_given() -> None:
    env = {
        "LLAMA_ARG_CTX_SIZE": "512",
        "LLAMA_ARG_ENDPOINT_METRICS": "1",
        "LLAMA_ARG_NO_ENDPOINT_SLOTS": "anything",
        "LLAMA_ARG_MMAP": "off",
        "LLAMA_API_KEY": "x,y",
        "LLAMA_ARG_CONT_BATCHING": "true",
        "LLAMA_LOG": "other programs have variables too",
    }
    args = read(env=env)
    assert args.ctx_size == 512 and args.metrics and not args.slots and not args.mmap
    assert args.api_key == ["x", "y"]
    assert read("-c", "8", "--slots", "--mmap", env=env).ctx_size == 8
    assert read("--slots", env=env).slots and read("--api-key", "z", env=env).api_key == ["z"]
    assert parse([], {"LLAMA_ARG_MODEL": "from-env.gguf"}, "version").model == Path("from-env.gguf")


def test_a_model_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--model" in refused(capsys, [])


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--magic"], "--magic"),
        (["--metric"], "--metric"),
        (["-c", "x"], "--ctx-size: found 'x', wanted an integer"),
        (["-c", "-1"], "--ctx-size: found -1, wanted 0"),
        (["--port", "65536"], "--port: found 65536"),
        (["-np", "1000000"], "--parallel"),
        (["--temp", "nan"], "--temperature: found nan"),
        (["--top-p", "2"], "--top-p"),
        (["-ctk", "q4_0"], "wanted one of f32"),
        (["--api-key", ","], "--api-key: found no key"),
        (["--api-prefix", "x"], "--api-prefix"),
        (["--api-prefix", "/a b"], "--api-prefix"),
        (["-to", "0"], "--timeout"),
        (["-s", str(2**64)], "--seed"),
        (["--cache-reuse", "256"], "a recurrent state cannot be shifted"),
        (["-lm", "mlock"], "--load-mode"),
        (["--reasoning-effort", "extreme"], "--reasoning-effort"),
        (["positional"], "positional"),
        (["-c"], "-c"),
    ],
)
def test_wrong_flags(capsys: pytest.CaptureFixture[str], argv: list[str], text: str) -> None:
    assert text in refused(capsys, [*MODEL, *argv])


@pytest.mark.parametrize("name", [name for names in REFUSED for name in names])
def test_flags_that_do_not_apply(capsys: pytest.CaptureFixture[str], name: str) -> None:
    reason = next(reason for names, reason in REFUSED.items() if name in names)
    for argv in ([name], [name, "1"]):
        line = refused(capsys, [*MODEL, *argv])
        assert f"{name}: {reason}" in line


def test_variables_that_do_not_apply(capsys: pytest.CaptureFixture[str]) -> None:
    for name, reason in REFUSED_VARIABLES.items():
        line = refused(capsys, MODEL, {name: "1"})
        assert name in line and reason in line
    assert "LLAMA_ARG_MAGIC" in refused(capsys, MODEL, {"LLAMA_ARG_MAGIC": "1"})
    assert "wanted an integer" in refused(capsys, MODEL, {"LLAMA_ARG_CTX_SIZE": "x"})
    assert "wanted on" in refused(capsys, MODEL, {"LLAMA_ARG_JINJA": "0"})


def test_no_name_stands_twice_and_help_has_all() -> None:
    names = [name for flag in FLAGS for name in (*flag.names, *flag.off)]
    names += [name for refused_names in REFUSED for name in refused_names]
    assert len(names) == len(set(names))
    variables = [name for flag in FLAGS for name in flag.variables]
    assert len(variables) == len(set(variables)) and not set(variables) & set(REFUSED_VARIABLES)
    text = re.sub(r"\s+", " ", build_parser("version").format_help())
    for flag in FLAGS:
        assert all(name in text for name in (*flag.names, *flag.variables)), flag
    assert "-ngl" not in text


def test_addresses() -> None:
    for host, loopback in (
        ("localhost", True),
        ("::1", True),
        ("127.0.0.2", True),
        ("0.0.0.0", False),
        ("h", False),
    ):
        assert _server_options(read("--host", host)).loopback is loopback
