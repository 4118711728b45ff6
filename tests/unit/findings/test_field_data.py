"""Findings in what real servers on an H100 did. Sizes are those of the real logs.

A continuation over `n` cached tokens takes 2 buffers of 4 KV heads * n * 128 * 2 bytes.
"""

from __future__ import annotations

import pytest

from tests.unit.findings.field import RUNS, convert
from wstrace.findings.analysed_run import AnalysedRun
from wstrace.findings.finding import Finding

DECODE = 2_146_816
PREFIX = "TurboQuantAttentionImpl."
UNTIL_MASKED = 20


def continuation(tokens: int) -> int:
    """Bytes of one request over so many cached tokens."""
    return 2 * 4 * tokens * 128 * 2


def one(session: AnalysedRun, code: str) -> Finding:
    """The only finding of a code."""
    (finding,) = [f for f in session.findings if f.code == code]
    return finding


@pytest.fixture(scope="module")
def grown_021() -> AnalysedRun:
    """0.21.0 with growth allowed after the lock."""
    return convert("vllm-0.21.0-grow")


@pytest.fixture(scope="module")
def prefix_026() -> AnalysedRun:
    """0.26.0, prefix caching without chunked prefill, V2 runner."""
    return convert("vllm-0.26.0-prefix")


@pytest.mark.parametrize("run", RUNS)
def test_the_arena_grew_to_what_was_asked(run: str) -> None:
    (view,) = convert(run).workers
    asked = {a.bytes for use in view.sites.values() for a in use.requests}
    assert all(g.after in asked for g in view.growths if not g.reserve)


def test_the_continuation_of_021_is_ws101(grown_021: AnalysedRun) -> None:
    finding = one(grown_021, "WS101")
    assert finding.function == PREFIX + "_continuation_prefill"
    assert finding.caller == "turboquant_attn.py:747:_continuation_prefill"
    assert finding.serving_bytes == continuation(29_472) == 60_358_656
    assert finding.arena_bytes == DECODE
    assert finding.warmup_bytes is None
    assert grown_021.verdict() == "findings"


def test_the_worst_case_of_021_is_64_mib(grown_021: AnalysedRun) -> None:
    bound = one(grown_021, "WS101").bound
    assert bound is not None
    assert (bound.bytes, bound.grade) == (67_108_864, "proved")


def test_the_masked_request_of_021_is_told_by_the_escape_alone(grown_021: AnalysedRun) -> None:
    site = PREFIX + "_continuation_prefill"
    (told,) = [f for f in grown_021.findings if f.function == site]
    assert told.code in ("WS101", "WS104")
    assert continuation(992) == 2_031_616  # 1.94 MiB
    assert told.detail.endswith("; 1.94 MiB before it escaped fitted and passed unseen")


def test_the_masked_request_alone_is_an_error_because_more_is_to_come() -> None:
    session = convert("vllm-0.21.0-grow", UNTIL_MASKED)
    (view,) = session.workers
    assert [g.after for g in view.growths] == [DECODE]
    finding = one(session, "WS103")
    assert (finding.serving_bytes, finding.severity) == (continuation(992), "error")


def test_growth_that_was_allowed_keeps_graphs_whole(grown_021: AnalysedRun) -> None:
    (view,) = grown_021.workers
    forced = [g for g in view.growths if g.forced]
    assert [g.after for g in forced] == [
        continuation(n) for n in (5088, 8992, 13088, 17184, 21280, 25376, 29472)
    ]
    assert "WS301" not in {f.code for f in grown_021.findings}


def test_growth_after_capture_with_no_lock_is_ws301_and_ws202(prefix_026: AnalysedRun) -> None:
    stale = one(prefix_026, "WS301")
    assert (stale.arena_bytes, stale.serving_bytes) == (DECODE, continuation(10_976))
    assert continuation(10_976) == 22_478_848
    assert stale.bound is not None
    assert (stale.bound.bytes, stale.bound.grade) == (32 << 20, "proved")
    assert "2 times, at last by one of 21.44 MiB" in stale.detail
    assert stale.function == PREFIX + "_continuation_prefill"
    assert "4 captured graphs" in stale.detail
    assert "V2 model runner" in one(prefix_026, "WS202").detail
    assert prefix_026.verdict() == "findings"


def test_the_builders_reservation_is_ws201(prefix_026: AnalysedRun) -> None:
    uncounted = [f for f in prefix_026.findings if f.code == "WS201"]
    builder = next(f for f in uncounted if f.phase == "kv-init")
    assert builder.function == "TurboQuantMetadataBuilder._reserve_workspace"
    assert builder.arena_bytes == DECODE


def test_growth_in_unlocked_serving_is_ws201_too(prefix_026: AnalysedRun) -> None:
    uncounted = [f for f in prefix_026.findings if f.code == "WS201"]
    serving = next(f for f in uncounted if f.phase == "serving")
    assert serving.arena_bytes == continuation(10_976) == 22_478_848


def test_a_reserve_right_after_the_manager_was_not_counted_in_021() -> None:
    (view,) = convert("vllm-0.21.0-reserve-at-init").workers
    reserve = next(g for g in view.growths if g.reserve)
    assert (reserve.after, reserve.phase) == (6_710_886_400, "init")
    assert reserve.window == "not counted"
