"""/slots and its actions."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from llama_k3.server.options import ServerOptions

from tests.python.server.conftest import RunningServer
from tests.python.server.test_app import is_error, wait_for_slots

PROMPT = "one two three four five " * 12


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "slots"


@pytest.fixture
def saving(make_server: Callable[..., RunningServer], folder: Path) -> Iterator[RunningServer]:
    yield make_server(ServerOptions(slot_save_path=folder), snapshot_min_step=16)


def act(server: RunningServer, action: str, slot: int = 0, **body: Any) -> httpx.Response:
    return server.client.post(f"/slots/{slot}", params={"action": action}, json=body)


def complete(server: RunningServer, slot: int, **fields: Any) -> dict[str, Any]:
    body = {"prompt": PROMPT, "n_predict": 8, "temperature": 0, "id_slot": slot, **fields}
    reply = server.post("/completion", body)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def test_states(server: RunningServer, make_server: Callable[..., RunningServer]) -> None:
    slots = server.client.get("/slots").json()
    assert [slot["id"] for slot in slots] == [0, 1, 2, 3]
    assert all(slot["n_ctx"] == 1024 and slot["is_processing"] is False for slot in slots)
    body = {"prompt": "x", "ignore_eos": True, "stream": True, "id_slot": 2, "top_k": 7}
    with server.client.stream("POST", "/completion", json=body) as reply:
        lines = reply.iter_lines()
        next(lines)
        busy = httpx.get(server.url + "/slots").json()[2]
        assert busy["is_processing"] and busy["params"]["top_k"] == 7
        assert busy["next_token"][0]["n_decoded"] >= 1
    wait_for_slots(server, "idle")
    hidden = make_server(ServerOptions(slots=False))
    assert "--slots" in is_error(hidden.client.get("/slots"), 501)["message"]


def test_saved_and_restored(saving: RunningServer, folder: Path) -> None:
    first = complete(saving, 0)
    saved = act(saving, "save", filename="talk.bin")
    assert saved.status_code == 200, saved.text
    body = saved.json()
    assert body["id_slot"] == 0 and body["filename"] == "talk.bin" and body["timings"]["save_ms"] > 0
    assert body["n_written"] == (folder / "talk.bin").stat().st_size
    assert os.listdir(folder) == ["talk.bin"]
    for slot in (0, 2):
        assert act(saving, "erase", slot).json() == {
            "id_slot": slot,
            "n_erased": body["n_saved"] if slot == 0 else 0,
        }
    restored = act(saving, "restore", 2, filename="talk.bin").json()
    assert restored["n_restored"] == body["n_saved"] and restored["n_read"] == body["n_written"]
    assert restored["timings"]["restore_ms"] > 0
    again = complete(saving, 2)
    assert again["content"] == first["content"]
    assert again["timings"]["cache_n"] > 0


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "a/b", "/etc/passwd", "a\\b", "a\x00b", "a\nb", ".hidden", "x" * 300, 5, None],
)
def test_names_that_leave_the_folder(saving: RunningServer, folder: Path, name: Any) -> None:
    for action in ("save", "restore"):
        is_error(act(saving, action, filename=name), 400)
    assert not folder.exists() or not os.listdir(folder)


def test_links_are_not_followed(saving: RunningServer, folder: Path, tmp_path: Path) -> None:
    complete(saving, 0)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "target").write_bytes(b"mine")
    folder.mkdir()
    (folder / "link").symlink_to(outside / "target")
    (folder / "folder").symlink_to(outside)
    for action in ("save", "restore"):
        is_error(act(saving, action, filename="link"), 400)
        is_error(act(saving, action, filename="folder/target"), 400)
        is_error(act(saving, action, filename="folder"), 400)
    assert (outside / "target").read_bytes() == b"mine"


def test_files_that_do_not_fit(saving: RunningServer, folder: Path) -> None:
    complete(saving, 0)
    act(saving, "save", filename="good")
    good = (folder / "good").read_bytes()
    before = complete(saving, 0)["content"]
    for number, data in enumerate(
        (b"", b"x", good[:-1], good[: len(good) // 2], good[:100] + b"\xff" + good[101:])
    ):
        (folder / "bad").write_bytes(data)
        is_error(act(saving, "restore", 1, filename="bad"), 400)
        assert number >= 0
    is_error(act(saving, "restore", 1, filename="none"), 400)
    assert complete(saving, 0)["content"] == before


def test_wrong_actions(saving: RunningServer, server: RunningServer) -> None:
    for path in ("/slots/0", "/slots/0?action=", "/slots/0?action=steal"):
        assert is_error(saving.post(path, {}), 400)["param"] == "action"
    for slot in ("4", "-1", "99999999999999999999", "x", "1.5", "0x0"):
        is_error(saving.client.post(f"/slots/{slot}?action=erase"), 400)
    is_error(saving.client.post("/slots/0?action=save"), 400)
    for action in ("save", "restore"):
        assert "--slot-save-path" in is_error(act(server, action, filename="a"), 501)["message"]
    assert act(server, "erase", 3).status_code == 200


def test_a_busy_slot_is_left_alone(saving: RunningServer) -> None:
    body = {"prompt": "x", "ignore_eos": True, "stream": True, "id_slot": 1, "temperature": 0}
    with saving.client.stream("POST", "/completion", json=body) as reply:
        lines = (line for line in reply.iter_lines() if line)
        next(lines)
        with httpx.Client(base_url=saving.url) as other:
            answers = [other.post(f"/slots/1?action={a}", json={"filename": "b"}) for a in ("save", "erase")]
        last = json.loads(list(lines)[-1].removeprefix("data: "))
    assert last["stop_type"] == "limit"
    assert all(answer.status_code in (200, 400) for answer in answers)
