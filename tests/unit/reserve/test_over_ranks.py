"""Ranks of different limits: one reserve that holds for each of them, under any limits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tools.fleet.planted import Plan, write_run
from wstrace.bounds.bound import Bound, reserve_of
from wstrace.findings.analysed_run import load_run
from wstrace.planning.from_run import plan_run
from wstrace.planning.over_ranks import NOT_JOINED, over_ranks
from wstrace.planning.plan import Wishes
from wstrace.reserve.config import dumps, evaluate, load_reserve
from wstrace.reserve.evaluate import site_bytes
from wstrace.trace.records import Limit

LIMITS: dict[str, Limit] = {
    "max_model_len": 4096,
    "max_num_batched_tokens": 256,
    "max_num_seqs": 8,
    "num_kv_heads": 4,
    "head_size": 64,
}
LENGTH = '"max_model_len":4096'
FLAT = "3145728 + 2 * round256(256 * ceil_div(cached_len, 16) * 16)"


def _bound(formula: str, limit: str = "max_model_len - 1", **more: Any) -> Bound:
    """A proved bound over `n`, with its bytes under LIMITS."""
    made = Bound(
        grade="proved",
        formula=formula.replace("n_", f"({limit})"),
        driver_formula=formula,
        drivers={"n_": limit} if "n_" in formula else {},
        **more,
    )
    return replace(made, bytes=site_bytes(reserve_of(made), LIMITS, LIMITS))


def _with_other_formula(folder: Path) -> Path:
    """Two ranks: the second has half the KV heads, and 3 MiB that follow no limit."""
    first, file = write_run(Plan(run="flip", ranks=2), folder).files.values()
    for each in (first, file):  # warm-up asked for a step beyond the context
        each.write_text(each.read_text().replace(LENGTH, '"max_model_len":4112'))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for record in lines:
        if record["t"] == "worker":
            record["limits"]["num_kv_heads"] = 2
        elif record["t"] == "request" and record.get("provenance"):
            (leaf,) = record["provenance"]["leaves"]
            rows = -(-leaf["value"] // 16) * 16
            record["bytes"] = 3145728 + 2 * 256 * rows
            record["provenance"]["formula"] = FLAT
    file.write_text("".join(json.dumps(record) + "\n" for record in lines))
    return file.parent


def test_a_longer_context_is_enough_for_the_rank_that_was_not_the_worst(tmp_path: Path) -> None:
    run = load_run(_with_other_formula(tmp_path))
    made = plan_run(run, Wishes()).config
    (path := tmp_path / "reserve.yaml").write_text(dumps(made), "utf-8")
    (attention,) = [site for site in made.sites if "fleet_attn" in site.site]
    assert (attention.grade, attention.bytes) == ("proved", 3145728 + 2 * 256 * 4112)
    for length in (4112, 8192, 65536):
        needs = max(2 * 512 * length, 3145728 + 2 * 256 * length)
        planned = plan_run(run, Wishes(limits={"max_model_len": length})).config
        live = evaluate(load_reserve(path), {**made.limits, "max_model_len": length})
        other = {**made.limits, "max_model_len": length, "num_kv_heads": 2}
        lower = evaluate(load_reserve(path), other)
        slots = [slot.bytes for slot in planned.slots]
        sizes = {*slots, *(slot.bytes for slot in (*live, *lower))}
        assert sizes == {max(needs, 5 << 20)}, length


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (_bound("1024 * n_"), _bound("n_ * num_kv_heads * 128 + 7777777")),
        (_bound("1024 * n_"), _bound("9999 * n_", "max_num_seqs")),
        (_bound("1024 * n_"), _bound("512 * n_ + 2222", lowest={"n_": 3000})),
        (_bound("1024 * n_"), _bound("4096 * n_", joint=("n_ - max_num_batched_tokens",))),
        (
            _bound("wide * n_", constants={"wide": 8}),
            _bound("wide + n_", constants={"wide": 9}),
        ),
        (_bound("8 * max_model_len", closed=True), _bound("7777 * max_num_seqs", closed=True)),
        (_bound("8 * max_model_len", closed=True), _bound("99 * n_", "max_num_seqs")),
        (_bound("num_kv_heads * n_"), _bound("num_kv_heads * n_")),
    ],
)
@pytest.mark.parametrize("heads", [4, 1, 16])
def test_the_maximum_of_two_is_the_larger_of_each_under_any_limits(
    one: Bound, other: Bound, heads: int, order: int
) -> None:
    ours = {**LIMITS, "num_kv_heads": heads}
    ranks = [(LIMITS, one), (ours, other)][::order]
    made = reserve_of(over_ranks(ranks, LIMITS))
    for length, seqs in ((4096, 8), (65536, 8), (4096, 4096), (65536, 4096)):
        changed = {"max_model_len": length, "max_num_seqs": seqs}
        told = replace(one, bytes=0), replace(other, bytes=0)
        needs = [
            site_bytes(reserve_of(bound), {}, {**limits, **changed})
            for bound, limits in zip(told, (LIMITS, ours), strict=True)
        ]
        live = site_bytes(made, LIMITS, {**LIMITS, **changed})
        assert live == max(*needs, made.bytes)


def test_equal_ranks_keep_their_bound_as_it_is() -> None:
    one = _bound("1024 * n_")
    assert over_ranks([(LIMITS, one), (LIMITS, replace(one))], LIMITS) == one
    seen = Bound(bytes=1 << 40, grade="observed")
    assert over_ranks([(LIMITS, one), (LIMITS, seen)], LIMITS) is seen


def test_the_least_sure_grade_stands() -> None:
    fitted = replace(_bound("1024 * n_ + 1"), grade="fitted")
    made = over_ranks([(LIMITS, _bound("2048 * n_")), (LIMITS, fitted)], LIMITS)
    assert made.grade == "fitted"


def test_formulas_that_are_too_long_are_not_joined_without_a_word() -> None:
    part = f"min(n_, {', '.join(str(10**17 + number) for number in range(500))})"
    one, other = _bound(f"1024 * {part}"), _bound(f"1024 * {part} + 1")
    made = over_ranks([(LIMITS, one), (LIMITS, other)], LIMITS)
    assert made.formula == other.formula
    assert made.why.endswith(NOT_JOINED)
