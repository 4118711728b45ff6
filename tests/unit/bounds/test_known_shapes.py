"""The known formulas against the buffers that vLLM's source asks for, shape by shape."""

from __future__ import annotations

import itertools
from math import prod

import pytest

from tests.unit.bounds import shapes_of_attention, shapes_of_experts
from tests.unit.bounds.shapes import NO_ROW, PLAYED, Row, Spec
from tests.unit.bounds.test_known_pairs import PAIRS
from wstrace.bounds.by_rule import rule_bound
from wstrace.known_sites.known import known_sites, require

ROWS = [*shapes_of_experts.ROWS, *shapes_of_attention.ROWS]


def arena_bytes(specs: list[Spec]) -> int:
    return sum(-(-prod(shape) * size // 256) * 256 for shape, size in specs)


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r.site}-{r.version}")
def test_the_bound_is_the_sum_of_the_largest_calls_buffers(row: Row) -> None:
    worst = rule_bound(require(row.site).at(row.version), row.numbers)
    assert worst.needs == ()
    assert worst.bytes == arena_bytes(row.specs)


def test_the_worst_routing_is_the_worst_of_all_routings() -> None:
    site = require("moe.deep_gemm_routed").at("0.26.0")
    for tokens, top_k, experts, block in itertools.product(
        (1, 5, 9), (1, 2, 4), (1, 3), (2, 4)
    ):
        numbers = {
            "max_num_batched_tokens": tokens,
            "top_k": top_k,
            "num_experts": experts,
            "deep_gemm_alignment": block,
            "moe_intermediate_size": 64,
            "hidden_size": 128,
        }
        rows = max(
            sum(-(-count // block) * block for count in counts)
            for counts in itertools.product(range(tokens + 1), repeat=experts)
            if sum(counts) <= tokens * min(top_k, experts)
        )
        assert rule_bound(site, numbers).bytes == arena_bytes([((rows, 128), 2)] * 2)


def _at(site: str, version: str | None) -> tuple[str, str]:
    return site, require(site).at(version).variant.since


def test_every_variant_has_a_row_or_says_what_holds_it_instead() -> None:
    every = {(site.id, variant.since) for site in known_sites() for variant in site.variants}
    held = {_at(row.site, row.version) for row in ROWS}
    held |= {_at(pair["site"], pair.get("version")) for pair in PAIRS}
    played = {(site, since) for site, several in PLAYED.items() for since in several}
    told = played | {variant for variant in every if variant[0] in NO_ROW}
    missing = sorted(every - held - told)
    assert not missing, f"without a row in shapes_of_*.py: {missing}"
    assert told & held == told - every == set(), "a reason for nothing"
    assert NO_ROW.keys() <= {site for site, _ in every}
