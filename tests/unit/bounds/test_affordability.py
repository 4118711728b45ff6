"""Bytes as KV cache, the curve over a limit, and the ladder of cheaper choices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wstrace.bounds.bound import Bound, reserve_of
from wstrace.planning.cost import (
    blocks_and_tokens,
    curve,
    is_absurd,
    kv_cost,
    ladder,
    smallest,
    threshold,
)
from wstrace.reserve.schema import SiteReserve
from wstrace.trace.records import Limit, Memory

LIMITS: dict[str, Limit] = {"max_model_len": 32768, "block_size": 16, "max_num_seqs": 8}
BOUND = Bound(
    bytes=67108864,
    grade="proved",
    formula="2 * round256(4 * round_up(max_model_len - 1, block_size) * 128 * 2)",
    driver_formula="2 * round256(4 * round_up(num_computed_tokens, block_size) * 128 * 2)",
    drivers={"num_computed_tokens": "max_model_len - 1"},
    observed=60358656,
)


def _need(max_model_len: int) -> int:
    return 2 * 4 * (-(-(max_model_len - 1) // 16) * 16) * 128 * 2


@pytest.mark.parametrize(("size", "blocks"), [(0, 0), (1, 1), (1000, 1), (1001, 2)])
def test_a_started_block_is_lost(size: int, blocks: int) -> None:
    memory = Memory(bytes_per_block=1000, block_size=32)
    assert blocks_and_tokens(size, memory, LIMITS) == (blocks, blocks * 32)


def test_block_bytes_from_the_totals_and_tokens_from_the_config() -> None:
    memory = Memory(available_kv_bytes=10240, num_gpu_blocks=10)
    assert blocks_and_tokens(2048, memory, LIMITS) == (2, 32)
    assert blocks_and_tokens(2048, None, LIMITS) == (None, None)
    assert kv_cost(2048, None, LIMITS).tokens is None


def test_the_curve_over_the_model_len() -> None:
    points = curve(BOUND, LIMITS)
    assert [(p.value, p.bytes) for p in points] == [
        (n, _need(n)) for n in (4096, 8192, 16384, 32768, 65536)
    ]
    assert {p.name for p in points} == {"max_model_len"}
    assert curve(Bound(bytes=5, grade="observed", observed=5), LIMITS) == []


def test_the_ladder_ends_with_what_was_seen() -> None:
    rungs = ladder(BOUND, LIMITS)
    assert [r.choice for r in rungs] == ["bound", "observed"]
    assert "num_computed_tokens above 29472" in rungs[-1].fails


def test_the_ladder_offers_the_flag_where_it_covers_what_was_seen() -> None:
    rungs = ladder(replace(BOUND, observed=_need(6000)), LIMITS, p99=_need(5000))
    assert [r.choice for r in rungs] == [
        "bound", "--max-model-len 16384", "twice observed", "--max-model-len 8192",
        "observed", "p99",
    ]  # fmt: skip
    assert rungs[1].bytes == _need(16384)


def test_the_threshold_is_the_last_length_that_fits() -> None:
    assert (
        threshold(reserve_of(BOUND), _need(2049), LIMITS) == ", num_computed_tokens above 2048"
    )
    assert threshold(reserve_of(replace(BOUND, drivers={})), 1, LIMITS) == ""


def _rows(lowest: dict[str, int]) -> SiteReserve:
    """A KiB a request, as a decode scratch asks: a step of none does not ask."""
    return SiteReserve(
        site="a.py:f",
        grade="proved",
        bytes=8192,
        formula="1024 * num_reqs",
        drivers={"num_reqs": "max_num_seqs"},
        lowest=lowest,
    )


@pytest.mark.parametrize("lowest", [{}, {"num_reqs": 1}])
def test_the_smallest_request_is_one_of_some_bytes(lowest: dict[str, int]) -> None:
    assert smallest(_rows(lowest), LIMITS) == 1024
    assert smallest(reserve_of(BOUND), LIMITS) == 2 * 4 * 16 * 128 * 2
    assert smallest(reserve_of(replace(BOUND, drivers={})), LIMITS) is None


def test_the_threshold_names_no_request_that_does_not_fit() -> None:
    assert threshold(_rows({"num_reqs": 1}), 1023, LIMITS) == ""
    assert threshold(_rows({"num_reqs": 1}), 1024, LIMITS) == ", num_reqs above 1"
    assert threshold(_rows({"num_reqs": 1}), 4095, LIMITS) == ", num_reqs above 3"


def test_absurd_is_a_quarter_of_the_kv_cache() -> None:
    memory = Memory(available_kv_bytes=400)
    assert not is_absurd(100, memory)
    assert is_absurd(101, memory)
    assert not is_absurd(8 << 30, None)
    assert is_absurd((8 << 30) + 1, None)
