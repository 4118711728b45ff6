"""Junk that is dense with pieces of the message, and messages whose beginning is lost."""

from __future__ import annotations

import time
from io import BytesIO

import pytest

from tests.unit.triage.generator import Failure
from wstrace.triage.extract.facts import Refusal
from wstrace.triage.extract.parser import parse
from wstrace.triage.ingest.opening import Block
from wstrace.triage.ingest.prefilter import Prefilter

MESSAGE = Failure().message
START = "Workspace is locked but"
PIECES = {
    "beginnings": MESSAGE[: MESSAGE.index("requires") - 8],
    "middles": "MB, current size is 1",
    "ends": MESSAGE[MESSAGE.index("requires") :],
    "words": "Workspace is locked ",
    "messages without their end": MESSAGE[: MESSAGE.index("current size") + 8],
}


def _refusals(text: str) -> list[Refusal]:
    found, _ = parse(BytesIO(text.encode()), "test.log")
    return found.refusals


@pytest.mark.parametrize("name", PIECES)
def test_dense_junk_takes_time_in_proportion(name: str) -> None:
    """Twice as much on one line: four times as long where a piece is compared with all that
    follows it (3 MB: 12 to 50 s)."""
    seconds = []
    for size in (1 << 18, 1 << 20):
        junk = (PIECES[name] * (size // len(PIECES[name]))).encode()
        before = time.process_time()
        parse(BytesIO(junk), "test.log")
        seconds.append(time.process_time() - before)
    assert seconds[1] < 8 * seconds[0] + 0.5


@pytest.mark.parametrize("size", [1 << 20, pytest.param(10 << 20, marks=pytest.mark.slow)])
def test_a_message_at_the_end_of_dense_junk_is_found(size: int) -> None:
    """10 MB are past the budget."""
    junk = PIECES["beginnings"] * (size // len(PIECES["beginnings"]))
    found = _refusals(junk + MESSAGE)
    assert [r.function for r in found] == [Failure().function]


def test_past_the_budget_both_ends_of_a_dense_block_are_read() -> None:
    half = PIECES["beginnings"].encode()
    dense = half * 30_000
    for new in (MESSAGE.encode() + dense, dense + MESSAGE.encode()):
        prefilter = Prefilter(budget=0)
        blocks = [Block(b"x", 1), Block(dense, 1), Block(dense, 1), Block(new, 1)]
        kept = [block.data for block, _ in prefilter.kept(blocks)]
        assert kept.count(dense) == 1
        assert new in kept


def test_a_block_that_ends_within_a_piece_is_not_new_for_that() -> None:
    half = PIECES["beginnings"].encode()
    size = 20 * len(half) * 100 + 1  # each block ends one byte further into a piece
    stream = half * (size * 40 // len(half) + 1)
    blocks = [Block(stream[n * size : (n + 1) * size], 1) for n in range(40)]
    kept = [block for block, _ in Prefilter(budget=0).kept(blocks) if len(block.data) == size]
    assert len(kept) <= 3


@pytest.mark.parametrize("lead", ["", "log: ", "2026-05-16 10:15:00 | "])
def test_a_message_cut_at_its_beginning_keeps_what_is_left(lead: str) -> None:
    whole = Failure()
    sizes = (f"{whole.required:.2f} MB", f"{whole.current:.2f} MB")
    for cut in range(1, MESSAGE.index("requires") + 1):
        (found,) = _refusals(lead + MESSAGE[cut:])
        assert found.required is not None
        assert found.current is not None
        assert (found.required.text, found.current.text) == sizes
        assert found.function in (whole.function, None)


def test_a_number_without_its_words_is_no_failure() -> None:
    end = MESSAGE[MESSAGE.index("requires") :]
    for cut in range(len("requires "), len(end)):
        assert _refusals(end[cut:]) == []
    assert _refusals(end.partition(" Workspace")[0]) == []
