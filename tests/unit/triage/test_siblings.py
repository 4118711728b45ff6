"""The sites beside the one that failed: which fail next, and what a reserve says of them."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.unit.triage.generator import Failure, log_of, read
from wstrace.findings.finding import Finding
from wstrace.known_sites.known import known_sites, siblings
from wstrace.reserve.schema import ReserveConfig
from wstrace.triage.diagnose.numbers import Given
from wstrace.triage.report import one_report
from wstrace.triage.reserve_plan import plan_report
from wstrace.versions import CHECKED_WITH, release_of

NUMBERS = {
    "num_kv_heads": 4, "num_attention_heads": 16, "head_size": 256, "block_size": 3072,
    "max_model_len": 131_072, "max_num_seqs": 36,
}  # fmt: skip
VERSION = (
    "INFO 09-01 10:00:00 [core.py:1] Initializing a V1 LLM engine (v{}) with config: model=1"
)
DECODE = Failure("turboquant_attn.py", 879, "_decode_attention", 9.18, 1.02)


def _finding(version: str, numbers: dict[str, int], failure: Failure = DECODE) -> Finding:
    said = VERSION.format(version) if version else ""
    (finding,) = read(f"{said}\n{failure.message}", Given(numbers)).findings
    return finding


def _reserve(version: str, numbers: dict[str, int]) -> ReserveConfig:
    said = VERSION.format(version)
    found = read(f"{said}\n{DECODE.message}", Given(numbers))
    return plan_report(one_report([found])).config


@pytest.mark.parametrize("version", ["0.20.2rc1.dev9+gabc", "0.21.0", "0.22.1", ""])
def test_the_continuation_fails_next(version: str) -> None:
    """2 * 4 heads * 132,096 tokens (131,071 in blocks of 3072) * 256 * 2 bytes."""
    (sibling,) = log_of(_finding(version, NUMBERS)).siblings
    assert sibling.site == "turboquant_attn.py:_continuation_prefill"
    assert sibling.bound.bytes == 541_065_216
    assert "reserves nothing" in sibling.why


def test_a_release_that_reserves_a_part_says_which_not() -> None:
    (sibling,) = log_of(_finding("0.24.0", NUMBERS)).siblings
    assert sibling.cover.covers == "partial"
    assert "chunked prefill off" in sibling.why


def test_what_vllm_reserves_itself_does_not_fail_next() -> None:
    continued = Failure(required=16.0)
    assert log_of(_finding("0.24.0", NUMBERS, continued)).siblings == ()
    (sibling,) = log_of(_finding("0.21.0", NUMBERS, continued)).siblings
    assert sibling.function == "_decode_attention"


def test_the_reserve_covers_the_sibling() -> None:
    config = _reserve("0.21.0", NUMBERS)
    assert {site.site: site.bytes for site in config.sites} == {
        "turboquant_attn.py:_continuation_prefill": 541_065_216,
        "turboquant_attn.py:_decode_attention": 19_245_312,
    }
    assert config.slots[0].bytes == 541_065_216
    assert config.not_covered == []


def test_a_sibling_without_its_numbers_is_named_as_not_covered() -> None:
    numbers = {name: n for name, n in NUMBERS.items() if name != "num_kv_heads"}
    config = _reserve("0.21.0", numbers)
    (left,) = config.not_covered
    assert left.site == "turboquant_attn.py:_continuation_prefill"
    assert "needs num_kv_heads" in left.why
    assert "--set num_kv_heads=N" in left.what_helps


@pytest.mark.parametrize("site", known_sites(), ids=lambda site: site.id)
def test_every_release_says_what_it_reserves(site) -> None:  # type: ignore[no-untyped-def]
    """From the first release that has the site up to the newest checked one, without a hole,
    or up to where the site left the arena."""
    spans = [(cover.since, cover.until) for cover in site.covers]
    assert spans
    for (_, until), (since, _) in pairwise(spans):
        assert until == since
    assert not release_of(site.first_seen).has(spans[0][0]) or site.cover(site.first_seen)
    assert site.cover(CHECKED_WITH) or spans[-1][1] == site.first_fixed


def test_alternatives_of_one_function_are_no_siblings() -> None:
    for site in known_sites():
        for other in siblings(site):
            assert not set(site.functions) & set(other.functions)
            assert site.kind != "arena" or site in siblings(other)
