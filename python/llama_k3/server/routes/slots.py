"""The slots: what they do, and their sequences saved, restored and erased."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Annotated, Any, Literal

from fastapi import Path, Query, Response

from ..bodies import api_router
from ..engine.engine import SlotState
from ..engine.files import open_folder, read_whole, safe_name, write_atomic
from ..errors import ApiError
from ..limits import INT32_MAX
from ..schemas.common import Form
from ..service import Service
from ..state import State
from .common import json_response, sampling_json

router = api_router()


def _slot_json(slot: SlotState) -> dict[str, Any]:
    """What llama.cpp shows, but no texts: those belong to whoever sent them."""
    request = slot.request
    shown: dict[str, Any] = {
        "id": slot.id,
        "state": slot.state,
        "n_ctx": slot.n_ctx,
        "is_processing": slot.state != "idle",
        "n_past": slot.n_past,
        "n_prompt_tokens": slot.n_prompt,
        "n_prompt_tokens_cache": slot.n_cached,
        "params": {},
        "next_token": [],
    }
    if request is not None:
        limit = request.max_tokens
        shown["params"] = {**sampling_json(request.sampling), "max_tokens": limit, "n_predict": limit}
        shown["next_token"] = [
            {
                "has_next_token": True,
                "n_remain": limit - slot.n_predicted if limit >= 0 else -1,
                "n_decoded": slot.n_predicted,
            }
        ]
    return shown


@router.get("/slots", summary="What each slot does")
async def slots(
    state: State,
    fail_on_no_slot: Annotated[bool, Query(description="503 where no slot is idle")] = False,
) -> Response:
    """501 with --no-slots."""
    if not state.options.slots:
        raise ApiError(501, "This server does not show its slots. Start it with `--slots`")
    shown = [_slot_json(slot) for slot in state.service.engine.slots()]
    if fail_on_no_slot and all(slot["is_processing"] for slot in shown):
        raise ApiError(503, "no slot available")
    return json_response(shown)


class SlotForm(Form):
    """`filename`: a plain name in --slot-save-path; for save and restore."""

    filename: str | None = None


@router.post("/slots/{id_slot}", summary="Save, restore or erase a slot's sequence")
async def slot_action(
    id_slot: Annotated[int, Path(ge=0, le=INT32_MAX)],
    action: Annotated[Literal["save", "restore", "erase"], Query()],
    state: State,
    form: SlotForm | None = None,
) -> Response:
    """Snapshots are saved with the sequence. A file is written whole or not at all."""
    service = state.service
    if id_slot >= service.n_slots:
        raise ApiError(400, f"id_slot: found {id_slot}, wanted 0 .. {service.n_slots - 1}", param="id_slot")
    if action == "erase":
        erased = await asyncio.wrap_future(service.engine.erase_slot(id_slot))
        return json_response({"id_slot": id_slot, "n_erased": erased})
    if state.options.slot_save_path is None:
        raise ApiError(501, "This server does not save and restore slots. Start it with `--slot-save-path`")
    if form is None or form.filename is None:
        raise ApiError(400, "filename: found nothing, wanted a plain file name", param="filename")
    name = safe_name(form.filename)
    folder = open_folder(state.options.slot_save_path)
    try:
        act = _save if action == "save" else _restore
        return json_response(await act(service, id_slot, folder, name))
    finally:
        os.close(folder)


async def _save(service: Service, slot: int, folder: int, name: str) -> dict[str, Any]:
    start = time.perf_counter()
    n_saved = service.engine.slots()[slot].n_past
    block = await asyncio.wrap_future(service.engine.save_slot(slot))
    await service.in_thread(lambda: write_atomic(folder, name, [block]))
    return {
        "id_slot": slot,
        "filename": name,
        "n_saved": n_saved,
        "n_written": len(block),
        "timings": {"save_ms": 1e3 * (time.perf_counter() - start)},
    }


async def _restore(service: Service, slot: int, folder: int, name: str) -> dict[str, Any]:
    start = time.perf_counter()
    block = await service.in_thread(lambda: read_whole(folder, name))
    n_restored = await asyncio.wrap_future(service.engine.restore_slot(slot, block))
    return {
        "id_slot": slot,
        "filename": name,
        "n_restored": n_restored,
        "n_read": len(block),
        "timings": {"restore_ms": 1e3 * (time.perf_counter() - start)},
    }
