"""The prefix cache: what a prompt finds, what is kept, and that going on is bit for bit as from the start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llama_k3.server.engine.parked import Stored, common_prefix, newest_point
from llama_k3.server.engine.prefix_cache import Placement, plan_stops

from llama_k3 import ArgumentError, Model, Snapshot
from tests.python.server.cache_harness import EVERY, OTHER, TEXT, Harness


@pytest.fixture(scope="module")
def model(tiny_gguf: Path) -> Iterator[Model]:
    with Model(tiny_gguf, n_threads=1) as opened:
        yield opened


@pytest.fixture
def make(model: Model) -> Iterator[Callable[..., Harness]]:
    opened: list[Harness] = []

    def build(**options: Any) -> Harness:
        opened.append(Harness(model, **options))
        return opened[-1]

    yield build
    for harness in opened:
        harness.close()


# ---- what is reused --------------------------------------------------------------------------------------


def test_first_call(make: Callable[..., Harness]) -> None:
    harness = make()
    placement = harness.run(TEXT[:50])
    assert placement.n_cached == 0 and "no common prefix" in placement.reason
    stats = harness.cache.stats()
    assert (stats.hits, stats.misses, stats.cached_tokens) == (0, 1, 0)


def test_next_turn_evaluates_only_what_is_new(make: Callable[..., Harness]) -> None:
    """The client keeps the whole answer: the sequence is extended in place, however often."""
    harness = make()
    prompt = TEXT[:50]
    for turn in range(4):
        placement = harness.place(prompt, [len(prompt) - 5])
        assert placement.n_cached == (0 if turn == 0 else len(prompt) - 9)
        answer = harness.generate(placement.slot, harness.read(placement, prompt), 6)
        harness.release(placement.slot)
        prompt = [*prompt, *answer, *TEXT[100 + turn * 10 : 109 + turn * 10]]
    assert harness.cache.stats().hits == 3
    assert "in place" in placement.reason


def test_turn_without_the_reasoning_goes_on_from_the_last_user_message(
    make: Callable[..., Harness],
) -> None:
    harness = make()
    prompt, end, before = TEXT[:60], 55, 0
    for turn in range(4):
        placement = harness.run(prompt, [20, end], answer=20)
        assert placement.n_cached == before
        assert placement.slot == 0 and harness.cache.stats().entries == 0
        before = end
        prompt = [*prompt[:end], *OTHER[turn * 30 : turn * 30 + 25]]
        end = len(prompt) - 5


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, EVERY - 1, EVERY, EVERY + 1, 2 * EVERY, 2 * EVERY + 1])
def test_exact_repeat_evaluates_one_token(make: Callable[..., Harness], length: int) -> None:
    """Also where the length stands at an edge of the snapshots' distance."""
    harness = make()
    first = harness.place(TEXT[:length])
    logits = harness.read(first, TEXT[:length])
    harness.generate(first.slot, logits, 5)
    harness.release(first.slot)
    for _ in range(3):
        again = harness.place(TEXT[:length])
        assert again.n_cached == length - 1
        assert np.array_equal(harness.read(again, TEXT[:length]), logits)
        harness.release(again.slot)


def test_repeat_of_a_prompt_that_went_on_from_an_end(make: Callable[..., Harness]) -> None:
    """The end of the sequence before is where the repeat goes on from as well."""
    harness = make()
    harness.run(TEXT[:30], answer=0)
    for _ in range(3):
        assert harness.run(TEXT[:31]).n_cached == 30


def test_hits_are_monotone_in_the_shared_length(make: Callable[..., Harness]) -> None:
    harness, found = make(n_slots=2), []
    harness.run(TEXT[:140], [30, 60, 61, 100])
    for shared in range(1, 150):
        placement = harness.place([*TEXT[:shared], *OTHER[:20]], wanted_slot=1)
        found.append(placement.n_cached)
        harness.release(1)
        harness.cache.erase(1)
    assert found == sorted(found)
    assert set(found) == {0, 30, 60, 100, 139}


def test_shrink(make: Callable[..., Harness]) -> None:
    """A prompt that is a prefix of what a slot holds."""
    harness = make(n_slots=1)
    harness.run(TEXT[:100], [20, 40, 90])
    for length, cached in ((41, 40), (40, 20), (95, 90), (100, 99)):
        assert harness.run(TEXT[:length]).n_cached == cached


def test_edit_in_the_middle_keeps_the_old_branch(make: Callable[..., Harness]) -> None:
    for n_slots in (1, 2):
        harness = make(n_slots=n_slots)
        harness.run(TEXT[:100], [20, 40, 90])
        edited = [*TEXT[:45], *OTHER[:40]]
        assert harness.run(edited, [20, 40, 80]).n_cached == 40
        assert harness.run(TEXT[:100], [20, 40, 90]).n_cached == 99
        assert harness.run(edited, [20, 40, 80]).n_cached == 84
        assert harness.run(TEXT[:90], [20, 40]).n_cached == 88  # EVERY behind 40


def test_a_parked_branch_has_the_snapshot_right_behind_the_fork(make: Callable[..., Harness]) -> None:
    harness = make(n_slots=1)
    for length, cached in ((41, 0), (42, 41), (80, 42)):
        assert harness.run(TEXT[:length], [length - 5], answer=0).n_cached == cached
    assert [point.position for point in harness.context.checkpoints(0)] == [36, 40, 41, 75, 79]
    assert harness.run([*TEXT[:40], *OTHER[:20]]).n_cached == 40
    assert harness.run([*TEXT[:41], *OTHER[:20]]).n_cached == 41


def test_a_short_request_does_not_destroy_a_conversation(make: Callable[..., Harness]) -> None:
    """One slot: the title of a chat is asked for, something else, and the chat goes on."""
    harness = make(n_slots=1)
    placement = harness.place(TEXT[:120], [10, 50, 115])
    answer = harness.generate(0, harness.read(placement, TEXT[:120]), 5)
    harness.release(0)
    assert harness.run([*TEXT[:50], *OTHER[50:55]], [10, 50]).n_cached == 50
    assert harness.run(OTHER[:5]).n_cached == 0
    longer = [*TEXT[:120], *answer, *OTHER[60:70]]
    placement = harness.run(longer)
    assert placement.n_cached == 125 and "from memory" in placement.reason


def test_fork_from_a_busy_slot(make: Callable[..., Harness]) -> None:
    harness = make(n_slots=3)
    running = harness.place(TEXT[:100], [40, 95])
    harness.read(running, TEXT[:100], upto=70)
    fork = harness.place([*TEXT[:45], *OTHER[:20]])
    assert (fork.n_cached, fork.slot != running.slot) == (40, True)
    assert f"copied from slot {running.slot}" in fork.reason
    harness.read(fork, [*TEXT[:45], *OTHER[:20]])
    longer = harness.place(TEXT[:90])
    assert longer.n_cached == 70  # the present end of the running one
    harness.read(longer, TEXT[:90])
    rest = harness.context.decode(TEXT[70:100], seq=running.slot)
    harness.fresh.clear()
    assert np.array_equal(rest, harness.fresh.decode(TEXT[:100]))


def test_copies_of_one_prompt_share_their_snapshots(make: Callable[..., Harness]) -> None:
    harness = make(n_slots=4)
    placement = harness.place(TEXT[:50], [45])
    harness.read(placement, TEXT[:50])
    before = harness.cache.stats().ram_bytes
    assert before == 2 * harness.checkpoint_bytes
    for _ in range(3):
        fork = harness.place(TEXT[:50], [45])
        assert fork.n_cached == 49
        harness.read(fork, TEXT[:50])
    assert harness.cache.stats().ram_bytes == before


def test_wanted_slot_and_no_reuse(make: Callable[..., Harness]) -> None:
    harness = make(n_slots=3)
    harness.run(TEXT[:50])
    assert harness.run([*TEXT[:50], 1, 2], wanted_slot=2).slot == 2
    placement = harness.run(TEXT[:50], allow_reuse=False)
    assert placement.n_cached == 0 and "cache off for this request" in placement.reason
    harness.busy = {0, 1}
    with pytest.raises(ArgumentError, match=r"found \[2\], wanted slot 0"):
        harness.place(TEXT[:5], wanted_slot=0)
    harness.busy = {0, 1, 2}
    with pytest.raises(ArgumentError, match=r"found \[\], wanted one"):
        harness.place(TEXT[:5])


def test_a_miss_tells_why(make: Callable[..., Harness]) -> None:
    harness = make(n_slots=1)
    harness.run(TEXT[:100], [50])
    placement = harness.run([*TEXT[:40], *OTHER[:10]])
    assert "common 40 tokens, no snapshot before them" in placement.reason
    harness.run(TEXT[:100], [50])


def test_without_memory_only_the_present_end_is_reused(make: Callable[..., Harness]) -> None:
    harness = make(n_slots=1, cache_ram=0)
    assert harness.cache.next_stop(0, 0) == 0
    placement = harness.place(TEXT[:100], [40, 90])
    assert harness.cache.next_stop(0, 0) == 100
    answer = harness.generate(0, harness.read(placement, TEXT[:100]), 3)
    harness.release(0)
    assert harness.run([*TEXT[:100], *answer, 5, 6]).n_cached == 103
    assert harness.run(TEXT[:100]).n_cached == 0
    assert harness.cache.stats().ram_bytes == harness.cache.stats().entries == 0


# ---- snapshots -------------------------------------------------------------------------------------------


def test_plan_of_stops() -> None:
    assert plan_stops(100, [], 0, 8, 0) == (99,)
    assert plan_stops(100, [50, 90], 0, 8, 0) == (50, 90, 99)
    assert plan_stops(100, [50, 52, 60, 62, 64], 0, 8, 0) == (50, 60, 64, 99)
    assert plan_stops(100, [50, 90, 99, 100], 0, 8, 0) == (50, 90, 99)
    assert plan_stops(100, [50, 90], 50, 8, 0) == (90, 99)
    assert plan_stops(100, [50, 90], 85, 8, 0) == (90, 99)
    assert plan_stops(100, [50, 90], 99, 8, 0) == ()
    assert plan_stops(100, [], 0, 8, 40) == (40, 80, 99)
    assert plan_stops(101, [80], 20, 8, 20) == (40, 60, 80, 100)
    assert plan_stops(1, [], 0, 8, 40) == plan_stops(1, [0, 1, 5], 0, 8, 40) == ()


@given(
    st.integers(1, 300),
    st.lists(st.integers(0, 310)),
    st.integers(0, 299),
    st.integers(1, 40),
    st.integers(0, 60),
)
def test_stops_ascend_and_keep_their_distance(
    n_prompt: int, boundaries: list[int], start: int, min_step: int, every: int
) -> None:
    start = min(start, n_prompt - 1)
    stops = plan_stops(n_prompt, boundaries, start, min_step, every)
    assert all(a < b for a, b in zip((start, *stops), stops, strict=False))
    assert (stops[-1:] or (start,)) == (n_prompt - 1,)
    last = max((end for end in boundaries if start < end < n_prompt), default=None)
    assert last is None or last in stops
    if every:
        assert all(b - a <= every for a, b in zip((start, *stops), stops, strict=False))


def test_a_checkpoint_at_a_used_position_makes_progress(make: Callable[..., Harness]) -> None:
    harness = make(n_slots=1, cache_ram=1)
    harness.cache_ram = 0
    tight = make(n_slots=1, cache_ram=2 * harness.checkpoint_bytes)
    for _ in range(5):
        for end in (60, 61):
            placement = tight.place(TEXT[:end], [end - 1])
            tight.read(placement, TEXT[:end])
            tight.cache.checkpoint(0)
            tight.cache.checkpoint(0)
            tight.release(0)
            assert tight.cache.stats().ram_bytes <= 2 * harness.checkpoint_bytes


def test_the_end_of_an_answer_is_a_place_to_come_back_to(make: Callable[..., Harness]) -> None:
    """The second user message is edited: the first answer is not read again."""
    harness = make(n_slots=1)
    placement = harness.place(TEXT[:40], [35])
    answer = harness.generate(0, harness.read(placement, TEXT[:40]), 20)
    harness.release(0)
    chat = [*TEXT[:40], *answer]
    assert harness.run([*chat, *OTHER[:20]], [35, 60, 75]).n_cached == 60
    assert harness.run([*chat, *OTHER[50:70]], [35, 60, 75]).n_cached == 60


def test_a_long_prompt_leaves_snapshots_on_its_way(make: Callable[..., Harness]) -> None:
    harness = make(n_slots=1)
    harness.run(TEXT[:200])
    for shared, cached in ((EVERY - 1, 0), (EVERY + 1, EVERY), (3 * EVERY + 5, 3 * EVERY)):
        assert harness.run([*TEXT[:shared], *OTHER[:9]]).n_cached == cached


# ---- budget ----------------------------------------------------------------------------------------------


def parked(harness: Harness) -> set[int]:
    """First tokens of the sequences in memory."""
    return {int(entry.tokens[0]) for entry in harness.cache._store.parked}


def test_least_recently_used_goes_first(make: Callable[..., Harness]) -> None:
    """Room for three parked prompts of 20 tokens and the checkpoint of the one in the slot."""
    prompts = [[number, *TEXT[:19]] for number in range(6)]
    probe = make(n_slots=1)
    probe.run(prompts[0], answer=0)
    probe.run(prompts[1], answer=0)
    size = probe.cache.stats().ram_bytes - probe.checkpoint_bytes
    harness = make(n_slots=1, cache_ram=3 * size + probe.checkpoint_bytes)
    for prompt in prompts[:4]:
        assert harness.run(prompt, answer=0).n_cached == 0
    assert parked(harness) == {0, 1, 2}
    assert harness.run(prompts[0], answer=0).n_cached == 19  # 3 is parked for it: the oldest, 1, goes
    assert parked(harness) == {0, 2, 3}
    harness.run(prompts[4], answer=0)
    harness.run(prompts[5], answer=0)
    assert parked(harness) == {0, 3, 4}
    assert harness.run(prompts[1], answer=0).n_cached == 0


def test_what_is_over_the_budget_alone_is_not_kept(make: Callable[..., Harness]) -> None:
    """20 tokens with their snapshot fit, 250 without one do not."""
    harness = make(n_slots=1, cache_ram=240_000)
    harness.run(TEXT[:20], answer=0)
    harness.place(OTHER[:250])
    harness.context.decode(OTHER[:250], logits="none")
    harness.release(0)
    assert parked(harness) == {TEXT[0]}
    harness.place(TEXT[100:110])
    harness.release(0)
    assert parked(harness) == {TEXT[0]}
    assert harness.run(TEXT[:20], answer=0).n_cached == 19


def test_memory_stays_flat_when_parking(model: Model) -> None:
    """Distinct prompts through one slot: bytes counted and bytes resident."""
    with Harness(model, n_slots=1, cache_ram=2_000_000) as harness:
        counted, resident = [], []
        for number in range(150):
            prompt = [number + 1, *TEXT[: 30 + number % 7]]
            placement = harness.place(prompt, [20])
            harness.context.decode(prompt, seq=0, logits="none")
            harness.cache.checkpoint(0)
            harness.release(placement.slot)
            counted.append(harness.cache.stats().ram_bytes)
            resident.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4096)
        assert max(counted) <= 2_000_000 < 2 * min(counted[50:])
        assert harness.cache.stats().entries < 20
        assert max(resident[75:]) - max(resident[:75]) < 4_000_000


# ---- failures --------------------------------------------------------------------------------------------


def test_state_with_non_finite_logits_is_not_reused(make: Callable[..., Harness]) -> None:
    """Everything that came from the same prefix goes; what shares nothing with it stays."""
    harness = make(n_slots=3)
    harness.run(TEXT[:60], [40])
    harness.run(OTHER[:60], [40])
    bad = harness.place([*TEXT[:50], *OTHER[:5]])
    assert bad.n_cached == 40
    harness.cache.failed(bad.slot)
    harness.busy.clear()
    assert harness.context.position(bad.slot) == 0
    assert harness.run(TEXT[:60]).n_cached == 0
    assert harness.run(OTHER[:60]).n_cached == 59


def test_a_cleared_slot_leaves_nothing_to_its_next_request(make: Callable[..., Harness]) -> None:
    harness = make(n_slots=1, cache_ram=0)
    harness.run(TEXT[:60])
    assert harness.cache.erase(0) == 63
    assert harness.run(TEXT[:60]).n_cached == 0


def test_erase_drops_what_is_parked_of_the_slot(make: Callable[..., Harness]) -> None:
    harness = make(n_slots=1)
    harness.run(TEXT[:60], [40])
    harness.run(OTHER[:30])
    harness.run(TEXT[:60], [40])
    assert harness.cache.stats().entries >= 1
    harness.cache.erase(0)
    assert harness.run(TEXT[:60]).n_cached == 0
    assert harness.run(OTHER[:30]).n_cached == 29


def test_slot_files_carry_their_snapshots(make: Callable[..., Harness], tmp_path: Path) -> None:
    harness, other = make(), make()
    harness.run(TEXT[:80], [40])
    with harness.cache.save(0) as snapshot:
        block = bytes(snapshot.data())
    harness.context.save(0, tmp_path / "same")
    assert (tmp_path / "same").read_bytes() == block
    other.run(OTHER[:30])
    assert other.cache.load(0, Snapshot.from_bytes(block)) == 83
    assert other.run([*TEXT[:50], 1, 2, 3]).n_cached == 40
    assert other.run(OTHER[:30]).n_cached == 29
    for damage in (b"", block[:-1], block[:200] + bytes(8) + block[208:]):
        before = other.context.tokens(0)
        with pytest.raises(Exception, match="saved sequence"):
            other.cache.load(0, Snapshot.from_bytes(damage))
        assert other.context.tokens(0) == before


def test_a_parked_sequence_that_is_damaged_is_a_miss(make: Callable[..., Harness]) -> None:
    harness = make(n_slots=1)
    harness.run(TEXT[:60])
    harness.run(OTHER[:60])
    for entry in harness.cache._store.parked:
        entry.snapshot.data()[300] ^= 1
    placement = harness.run(TEXT[:60])
    assert placement.n_cached == 0 and "damaged" in placement.reason


# ---- properties ------------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 1), max_size=300), st.lists(st.integers(0, 1), max_size=300), st.integers(0, 300)
)
def test_common_prefix(a: list[int], b: list[int], shared: int) -> None:
    b = a[:shared] + b
    wanted = 0
    while wanted < min(len(a), len(b)) and a[wanted] == b[wanted]:
        wanted += 1
    assert common_prefix(np.array(a, np.int32), np.array(b, np.int32)) == wanted


@given(
    st.lists(st.integers(0, 1), min_size=1, max_size=12),
    st.lists(st.integers(0, 1), min_size=1, max_size=3),
    st.integers(0, 12),
    st.sets(st.integers(1, 12)),
    st.integers(0, 12),
)
@settings(max_examples=500)
def test_usable_point_of_a_stored_sequence(
    tokens: list[int], more: list[int], changed: int, points: set[int], more_than: int
) -> None:
    """As its definition says; the prompt differs in one token, and may agree behind it."""
    prompt = [*tokens, *more]
    prompt[changed % len(prompt)] ^= 1
    kept = sorted({point for point in points if point < len(tokens)} | {len(tokens)})
    found = [point for point in kept if more_than < point < len(prompt) and prompt[:point] == tokens[:point]]
    entry = Stored(np.array(tokens, np.int32), tuple(kept), 0, 0)
    more_than = min(more_than, len(prompt) - 1)
    assert entry.usable(np.array(prompt, np.int32), more_than) == max(found, default=0)


def reachable(harness: Harness, prompt: list[int]) -> int:
    """The longest usable prefix, from the definition."""
    context = harness.context
    held = [
        (context.tokens(slot), [c.position for c in context.checkpoints(slot)])
        for slot in range(harness.n_slots)
    ]
    held += [(entry.tokens.tolist(), list(entry.points)) for entry in harness.cache._store.parked]
    best = 0
    for tokens, points in held:
        for point in [*points, len(tokens)]:
            if point < len(prompt) and tokens[:point] == prompt[:point]:
                best = max(best, point)
    return best


def counted_bytes(harness: Harness) -> int:
    points = {c.id for slot in range(harness.n_slots) for c in harness.context.checkpoints(slot)}
    return len(points) * harness.checkpoint_bytes + sum(e.snapshot.size for e in harness.cache._store.parked)


BRANCHES = [TEXT, [*TEXT[:30], *OTHER], [*TEXT[:30], *OTHER[:20], *TEXT], OTHER]
REQUEST = st.tuples(
    st.sampled_from(range(len(BRANCHES))),
    st.integers(1, 90),
    st.lists(st.integers(1, 90), max_size=4).map(sorted),
    st.integers(0, 5),
    st.sampled_from(["run", "run", "run", "hold", "part", "end", "off", "fail", "erase", "reload"]),
)


def step(
    harness: Harness, request: Any, held: list[tuple[Placement, list[int]]]
) -> tuple[list[int], int] | None:
    """One request; (prompt, tokens of it that stay reusable) where it was read whole."""
    branch, length, boundaries, answer, kind = request
    prompt = BRANCHES[branch][:length]
    while held and (kind == "end" or not harness.idle):
        placement, _ = held.pop(0)
        harness.release(placement.slot)
    if kind == "erase":
        harness.cache.erase(min(harness.idle))
        return None
    if kind == "reload":
        slot = min(harness.idle)
        harness.cache.load(max(harness.idle), harness.cache.save(slot))
        return None
    wanted = 0 if kind == "off" else reachable(harness, prompt)
    placement = harness.place(prompt, boundaries, allow_reuse=kind != "off")
    assert placement.n_cached == wanted
    upto = (placement.n_cached + length) // 2 if kind == "part" else None
    logits = harness.read(placement, prompt, upto)
    if kind == "fail":
        harness.busy.discard(placement.slot)
        harness.cache.failed(placement.slot)
        return None
    if logits is not None:
        harness.generate(placement.slot, logits, answer)
    if kind == "hold":
        held.append((placement, prompt))
    else:
        harness.release(placement.slot)
    ends = [end for end in boundaries if end < length]
    return (prompt, max(ends, default=length - 1)) if upto is None else None


@pytest.mark.parametrize(("n_slots", "budget"), [(1, 0), (1, 3), (2, 5), (3, 9)])
@given(st.lists(REQUEST, min_size=1, max_size=10))
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_order_of_requests(model: Model, n_slots: int, budget: int, requests: list[Any]) -> None:
    """The longest usable prefix is found, the logits are right, and the budget is never exceeded."""
    with Harness(model, n_slots=n_slots) as probe:
        limit = budget * probe.checkpoint_bytes
    with Harness(model, n_slots=n_slots, cache_ram=limit) as harness:
        held: list[tuple[Placement, list[int]]] = []
        for request in requests:
            step(harness, request, held)
            stats = harness.cache.stats()
            assert stats.ram_bytes == counted_bytes(harness) <= limit


@pytest.mark.parametrize("n_slots", [1, 2, 3])
@given(st.lists(REQUEST.filter(lambda r: r[4] not in ("fail", "erase", "reload")), min_size=2, max_size=10))
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_with_memory_enough_no_prompt_is_forgotten(model: Model, n_slots: int, requests: list[Any]) -> None:
    """Whatever came between, a prompt is found again up to the end of its last message."""
    with Harness(model, n_slots=n_slots) as harness:
        held: list[tuple[Placement, list[int]]] = []
        done = [found for request in requests if (found := step(harness, request, held))]
        for prompt, least in done:
            assert reachable(harness, prompt) >= least


def test_newest_point() -> None:
    assert [newest_point([3, 7], limit) for limit in range(9)] == [0, 0, 0, 3, 3, 3, 3, 7, 7]
    assert newest_point([], 5) == 0
