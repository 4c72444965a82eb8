"""llama-cli as a user runs it: once, through pipes, and in a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from llama_k3.chat import K2Chat

from llama_k3 import Model, Tokenizer, xtml
from scripts.tiny_k3.words import WEATHER_TOOL

COMMAND = [sys.executable, "-m", "llama_k3.cli.main"]
SUM_ANSWER = re.compile(r"\[Start thinking\]\n.+\n\[End thinking\]\n\n12 \+ 7 = 19\.\n")
PERF = re.compile(
    r"llama_perf_context_print:        load time = +\d+\.\d\d ms\n"
    r"llama_perf_context_print: prompt eval time = +\d+\.\d\d ms / +(\d+) tokens "
    r"\( *\d+\.\d\d ms per token, +\d+\.\d\d tokens per second\)\n"
    r"llama_perf_context_print:        eval time = +\d+\.\d\d ms / +(\d+) runs   "
    r"\( *\d+\.\d\d ms per token, +\d+\.\d\d tokens per second\)\n"
    r"llama_perf_context_print:       total time = +\d+\.\d\d ms / +(\d+) tokens\n"
    r"llama_perf_context_print:    graphs reused = +\d+\n"
)


def run(*args: str | Path, text: str = "", code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*COMMAND, *map(str, args)], input=text, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def perf_of(stderr: str) -> tuple[int, int, int]:
    """Tokens of the prompt, of the answer and in all."""
    match = PERF.search(stderr)
    assert match, stderr
    prompt, answer, total = map(int, match.groups())
    return prompt, answer, total


def turn_tokens(tokenizer: Tokenizer, text: str, first: bool) -> int:
    added = xtml.user_message(text) + xtml.generation_prompt()
    return len(xtml.encode((xtml.preamble() if first else []) + added, tokenizer))


def test_one_question(tiny_gguf: Path, tokenizer: Tokenizer) -> None:
    done = run("-m", tiny_gguf, "-p", "What is 12 + 7?", "-st", "--temp", "0", "-t", "2")
    assert SUM_ANSWER.fullmatch(done.stdout)
    prompt, answer, total = perf_of(done.stderr)
    assert prompt == turn_tokens(tokenizer, "What is 12 + 7?", first=True)
    assert total == prompt + answer


def test_long_names_and_a_file(tiny_gguf: Path, tmp_path: Path) -> None:
    question = tmp_path / "question"
    question.write_text("What is 12 + 7?\n")
    done = run(
        *("--model", tiny_gguf, "--file", question, "--single-turn", "--temp", "0", "--threads", "1"),
        *("--ctx-size", "0", "--n-predict", "200", "--seed", "1"),
    )
    assert SUM_ANSWER.fullmatch(done.stdout)


def test_a_dialogue_through_a_pipe_computes_only_what_is_new(tiny_gguf: Path, tokenizer: Tokenizer) -> None:
    questions = ["Remember: the code of the red box is 1234.", "", "What is the code of the red box?"]
    done = run("-m", tiny_gguf, "--temp", "0", "-t", "2", text="\n".join(questions) + "\n")
    assert done.stdout.endswith("The code of the red box is 1234.\n")
    prompt, _, _ = perf_of(done.stderr)
    # The end token of the first answer is computed with the second question.
    first, second = (turn_tokens(tokenizer, questions[i], first=i == 0) for i in (0, 2))
    assert prompt == first + second + 1


def test_commands(tiny_gguf: Path, tmp_path: Path) -> None:
    lines = [
        "What is 27 + 15?",
        "/regen",
        f"/save {tmp_path / 'chat'}",
        "/undo",
        "Repeat after me: \\",
        "seven red boats",
        "/clear",
        "/regen",
        f"/load {tmp_path / 'chat'}",
        "/regen",
        "/stats",
        "/nonsense",
        "/help",
    ]
    done = run("-m", tiny_gguf, "--temp", "0", text="\n".join(lines) + "\n")
    assert done.stdout.count("27 + 15 = 42.\n") == 3
    assert "taken back: What is 27 + 15?\n" in done.stderr
    assert f"saved 2 messages, 146 tokens: {tmp_path / 'chat'}\n" in done.stderr
    assert "error: /regen: found no answer, wanted one to replace\n" in done.stderr
    assert f"loaded 2 messages, 146 tokens: {tmp_path / 'chat'}\n" in done.stderr
    assert "146 of 4096 tokens of context, 2 messages; MiB: in all " in done.stderr
    assert "error: /nonsense: found no such command, wanted one of /regen, " in done.stderr
    assert "/save FILE   write the dialogue" in done.stderr
    # what was saved is what the answer was made from: nothing of it is computed again but the regeneration
    assert (tmp_path / "chat.state").stat().st_size > 0


def test_a_saved_chat_without_its_state_is_computed_anew(tiny_gguf: Path, tmp_path: Path) -> None:
    chat = tmp_path / "chat"
    first = "Remember: the code of the red box is 1234."
    run("-m", tiny_gguf, "--temp", "0", text=f"{first}\n/save {chat}\n")
    (tmp_path / "chat.state").unlink()
    done = run("-m", tiny_gguf, "--temp", "0", text=f"/load {chat}\nWhat is the code of the red box?\n")
    assert "the state is computed anew: " in done.stderr
    assert done.stdout.endswith("The code of the red box is 1234.\n")
    chat.write_text('{"version": 1, "messages": [{"role": 3}]}')
    done = run("-m", tiny_gguf, text=f"/load {chat}\n/load {tmp_path}\n/load\n")
    assert f"error: {chat}: found no dialogue of version 1, wanted a file that /save wrote" in done.stderr
    assert f"Is a directory: '{tmp_path}'" in done.stderr
    assert "error: /load: found no file name, wanted /load FILE" in done.stderr


def test_a_tool_call_and_its_result(tiny_gguf: Path, tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([WEATHER_TOOL]))
    lines = "What is the weather in Paris?\nSunny, 21 degrees.\n"
    done = run("-m", tiny_gguf, "--temp", "0", "--tools", tools, text=lines)
    assert '[tool call get_weather {"city": "Paris"}]\n' in done.stdout
    assert done.stdout.endswith("21 degrees.\n")


def test_a_system_message(tiny_gguf: Path) -> None:
    system = "The code of the red box is 1234."
    question = "What is the code of the red box?"
    done = run("-m", tiny_gguf, "--temp", "0", "-st", "-sys", system, "-p", question)
    assert done.stdout.endswith("The code of the red box is 1234.\n")


def test_exit_in_a_pipe(tiny_gguf: Path) -> None:
    assert run("-m", tiny_gguf, text="/exit\nHello\n").stdout == ""


def test_input_that_is_no_text(tiny_gguf: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "-m", str(tiny_gguf), "-n", "3", "-p", b"caf\xe9"],
        input=b"\xff\xfe\n",
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"> caf" in done.stdout


def test_length_limit_and_seed(tiny_gguf: Path) -> None:
    def answer(seed: int) -> str:
        options = ("-n", "12", "--ignore-eos", "--temp", "3", "--top-k", "0", "--top-p", "1", "--min-p", "0")
        done = run("-m", tiny_gguf, "-p", "Hello", "-st", "-s", str(seed), *options)
        assert perf_of(done.stderr)[1] == 11
        return done.stdout

    assert answer(1) == answer(1) != answer(2)


def test_ignore_eos_goes_on_to_the_end_of_the_context(tiny_gguf: Path) -> None:
    done = run("-m", tiny_gguf, "-p", "Hello", "-st", "--temp", "0", "--ignore-eos", "-c", "120", code=1)
    assert "Hello! How can I help you?" in done.stdout
    assert re.search(r"^context full: .*120", done.stderr, re.MULTILINE)
    assert perf_of(done.stderr)[2] == 120


def test_a_prompt_that_does_not_fit(tiny_gguf: Path) -> None:
    done = run("-m", tiny_gguf, "-p", "Hello", "-st", "-c", "50", code=1)
    assert "context full: found " in done.stderr
    assert "wanted at most 50 in all (a larger -c makes room)" in done.stderr


def test_a_model_of_the_other_architecture(linear_gguf: Path) -> None:
    done = run("-m", linear_gguf, "-p", "Hello", "-st", "-n", "5", "--temp", "0")
    assert "thinking" not in done.stdout
    with Model(linear_gguf, n_threads=1) as model:
        message = K2Chat().render([{"role": "user", "content": "Hello"}])
        assert perf_of(done.stderr)[0] == len(xtml.encode(message, model.tokenizer))


def test_verbose_shows_the_librarys_messages(tiny_gguf: Path) -> None:
    quiet = run("-m", tiny_gguf, "-p", "Hello", "-st", "-n", "1")
    loud = run("-m", tiny_gguf, "-p", "Hello", "-st", "-n", "1", "-v")
    assert "[info]" in loud.stderr
    assert "[info]" not in quiet.stderr


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["-m", "x", "--no-such-flag"], "unrecognized arguments: --no-such-flag"),
        (["-m", "x", "--thread", "2"], "unrecognized arguments: --thread 2"),
        (["-p", "x"], "the following arguments are required: -m/--model"),
        (["-m", "x", "-st"], "-st needs a message: -p TEXT or -f FILE"),
        (["-m", "x", "-st", "-p", " "], "-st needs a message: -p TEXT or -f FILE"),
        (["-m", "x", "-p", "a", "-f", "b"], "not allowed with"),
        (["-m", "x", "-f", "no-such-file"], "-f no-such-file: "),
        (["-m", "x", "-n", "-2"], "-n: found -2, wanted at least -1"),
        (["-m", "x", "-t", "0"], "-t: found 0, wanted at least 1"),
        (["-m", "x", "-s", "-5"], "-s: found -5, wanted -1 .. 2^64 - 1"),
        (["-m", "x", "--temp", "warm"], "invalid float value: 'warm'"),
        (["-hf", "user/model"], "-hf: models are not downloaded; give the file with -m"),
        (["-m", "x", "--n-gpu-layers", "9"], "--n-gpu-layers: the model runs on the CPU"),
        (["-m", "x", "--tools", "no-such-file"], "--tools no-such-file: "),
    ],
)
def test_wrong_flags(args: list[str], error: str) -> None:
    done = run(*args, code=2)
    assert done.stderr.startswith("error: ")
    assert error in done.stderr
    assert done.stdout == ""


def test_errors_of_the_library(tmp_path: Path, tiny_gguf: Path) -> None:
    done = run("-m", tmp_path / "missing.gguf", "-p", "x", "-st", code=1)
    assert re.match(r"error: .*missing\.gguf", done.stderr)
    done = run("-m", tiny_gguf, "-p", "x", "-st", "--temp", "nan", code=1)
    assert re.search(r"^error: .*temperature", done.stderr, re.MULTILINE)


def test_a_reader_that_leaves(tiny_gguf: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "-m", str(tiny_gguf), "-p", "Hello", "-st", "--ignore-eos", "-c", "400"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout and process.stderr
        process.stdout.read(5)
        process.stdout.close()
        stderr = process.stderr.read()
        assert process.wait(60) == 1
    assert "Traceback" not in stderr
    assert "BrokenPipe" not in stderr


@pytest.mark.parametrize(
    ("streams", "code", "error"),
    [
        (">&-", 0, ""),
        ("2>&-", 0, ""),
        (">&- 2>&-", 0, ""),
        (">/dev/full", 1, "error: output not written: No space left on device\n"),
        ("2>/dev/full", 1, ""),
    ],
)
def test_output_that_cannot_be_written(tiny_gguf: Path, streams: str, code: int, error: str) -> None:
    command = shlex.join([*COMMAND, "-m", str(tiny_gguf), "-p", "Hello", "-st", "-n", "2"])
    shell = ["sh", "-c", f"exec {command} {streams}"]
    done = subprocess.run(shell, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert done.returncode == code
    assert done.stderr.endswith(error)
    assert "Traceback" not in done.stderr


def test_closed_standard_input_is_an_empty_one(tiny_gguf: Path) -> None:
    command = shlex.join([*COMMAND, "-m", str(tiny_gguf), "-n", "2"])
    done = subprocess.run(["sh", "-c", f"exec {command} <&-"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


class Screen:
    """llama-cli in a terminal of its own."""

    def __init__(self, *args: str | Path, **env: str) -> None:
        environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm"} | env
        self._pid, self._file = pty.fork()
        if self._pid == 0:
            os.execve(COMMAND[0], [*COMMAND, *map(str, args)], environment)
        self.text = ""
        self._bytes = b""
        self._seen = 0

    def type(self, text: str) -> None:
        os.write(self._file, text.encode())

    def _read(self) -> bool:
        try:
            data = os.read(self._file, 4096) if select.select([self._file], [], [], 0.1)[0] else b""
        except OSError:
            return False
        self._bytes += data
        self.text = self._bytes.decode("utf-8", "replace").replace("\r\n", "\n")
        return True

    def wait_for(self, *wanted: str) -> None:
        """Read until the strings have come, in this order, after what was waited for before."""
        for text in wanted:
            end = time.monotonic() + 60
            while (found := self.text.find(text, self._seen)) < 0:
                assert self._read() and time.monotonic() < end, f"no {text!r} in {self.text!r}"
            self._seen = found + len(text)

    def interrupt_at_prompt(self, wanted: str) -> None:
        """Ctrl-C until `wanted` comes. Python's line editing may keep a first one back until the next key."""
        end = time.monotonic() + 60
        while self.text.find(wanted, self._seen) < 0:
            assert time.monotonic() < end, f"no {wanted!r} in {self.text!r}"
            self.type("\x03")
            for _ in range(20):
                self._read()
        self.wait_for(wanted)

    def finish(self) -> int:
        """Read to the end; the exit status."""
        while self._read():
            pass
        os.close(self._file)
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


OPTIONS: Sequence[str] = ("--temp", "0", "-t", "1")


def test_a_chat_in_a_terminal(tiny_gguf: Path) -> None:
    screen = Screen("-m", tiny_gguf, *OPTIONS)
    screen.wait_for("kimi-k3, ", " layers", "> ")
    screen.type("Remember: the code of the red box is 1234.\n")
    screen.wait_for("\x1b[2m[Start thinking]", "[End thinking]\x1b[0m", "OK, I will remember it.", "> ")
    screen.type("What is the code of the red box?\n")
    screen.wait_for("The code of the red box is 1234.", "> ")
    screen.type("/exit\n")
    screen.wait_for("prompt eval time")
    assert screen.finish() == 0


def test_history_is_kept_for_the_next_chat(tiny_gguf: Path, tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    screen = Screen("-m", tiny_gguf, *OPTIONS, **environment)
    screen.wait_for("> ")
    screen.type("What is 12 + 7?\n")
    screen.wait_for("12 + 7 = 19.", "> ")
    screen.type("/exit\n")
    assert screen.finish() == 0
    history = tmp_path / "llama-k3" / "history"
    assert history.stat().st_mode & 0o077 == 0
    screen = Screen("-m", tiny_gguf, *OPTIONS, **environment)
    screen.wait_for("> ")
    screen.type("\x1b[A\x1b[A\n")  # the line before /exit
    screen.wait_for("12 + 7 = 19.", "> ")
    screen.type("\x04")
    assert screen.finish() == 0


def test_ctrl_c_stops_the_answer_and_keeps_the_chat(tiny_gguf: Path) -> None:
    screen = Screen("-m", tiny_gguf, "--ignore-eos", *OPTIONS, "-p", "Hello")
    screen.wait_for("> Hello", "How can I help you?")
    screen.type("\x03")
    screen.wait_for("\n> ")
    screen.type("What is 12 + 7?\n")
    screen.wait_for("12 + 7 = 19.")
    screen.type("\x03")
    screen.wait_for("\n> ")
    screen.interrupt_at_prompt("(Ctrl-C again, Ctrl-D or /exit leaves)")
    screen.wait_for("> ")
    screen.interrupt_at_prompt("prompt eval time")
    assert screen.finish() == 0


def test_ctrl_c_while_the_prompt_is_read(tiny_gguf: Path, tmp_path: Path) -> None:
    long = tmp_path / "long"
    long.write_text("Hello world. " * 1500)
    screen = Screen("-m", tiny_gguf, *OPTIONS, "-c", "20000", "-f", long)
    screen.wait_for("reading prompt")
    start = time.monotonic()
    screen.type("\x03")
    screen.wait_for("> ")
    assert time.monotonic() - start < 2
    screen.type("\x04")
    assert screen.finish() == 0


def test_a_terminal_without_colour(tiny_gguf: Path) -> None:
    screen = Screen("-m", tiny_gguf, *OPTIONS, "-p", "Hello", "-st", NO_COLOR="1")
    assert screen.finish() == 0
    assert "\x1b[2m" not in screen.text
    answer = r"\[Start thinking\]\n.+\n\[End thinking\]\n\nHello! How can I help you\?\n"
    assert re.search(answer, screen.text)
