"""Numbers that the log contradicts give no bound and no reserve."""

from __future__ import annotations

import pytest

from tests.unit.triage.generator import Failure, bound_of, log_lines, log_of, read
from tests.unit.triage.test_steps import DUMP
from wstrace.bounds.bound import Bound
from wstrace.errors import WstraceError
from wstrace.findings.finding import Finding
from wstrace.report.finding_text import need_text
from wstrace.report.triage import render_text
from wstrace.triage.diagnose.numbers import Given
from wstrace.triage.report import one_report
from wstrace.triage.reserve_plan import plan_report

NUMBERS = {"num_kv_heads": 8, "head_size": 128, "max_model_len": 32_000, "block_size": 16}
TOO_SMALL = "these numbers contradict 131.25 MB seen: by them the site needs at most"


def _finding(lines: list[str], numbers: dict[str, int]) -> Finding:
    (finding,) = read("\n".join(lines), Given(numbers)).findings
    return finding


def test_a_bound_below_the_size_in_the_log_is_no_bound() -> None:
    finding = _finding([Failure(required=131.25).message], NUMBERS)
    assert bound_of(finding).bytes is None
    assert bound_of(finding).contradiction.startswith(TOO_SMALL)
    assert not log_of(finding).required_exact
    report = one_report([read(Failure(required=131.25).message, Given(NUMBERS))])
    assert "contradict 131.25 MB" in " ".join(render_text(report).split())
    with pytest.raises(WstraceError, match=r"contradict 131\.25 MB seen") as refused:
        plan_report(report)
    assert "max_model_len" in str(refused.value.hint)


def test_one_contradicted_rank_takes_the_bound_from_the_others() -> None:
    lines = log_lines([Failure(required=100.0).message], "Worker_TP0 pid=1")
    lines += log_lines([Failure(required=131.25).message], "Worker_TP1 pid=2")
    found = read("\n".join(lines), Given(NUMBERS)).findings
    assert [bound_of(f).bytes for f in found] == [None, None]
    assert all(bound_of(f).contradiction for f in found)


def test_the_printed_size_is_rounded() -> None:
    """The worst case of 32,000 tokens is 125 MiB: printed as 125.00 it is no contradiction."""
    finding = _finding([Failure(required=125.0).message], NUMBERS)
    assert (bound_of(finding).bytes, bound_of(finding).grade) == (
        2 * 8 * 32_000 * 128 * 2,
        "proved",
    )


@pytest.mark.parametrize(("computed", "holds"), [(5088, True), (9000, False)])
def test_the_dump_must_give_the_printed_size(computed: int, holds: bool) -> None:
    """2 * 2 heads * 5088 tokens * 256 * 2 bytes = 10,420,224 bytes = 9.94 MB."""
    numbers = {"num_kv_heads": 2, "head_size": 256, "max_model_len": 32_768, "block_size": 16}
    lines = [DUMP.format(computed=computed), *Failure(required=9.94, current=2.05).traceback()]
    finding = _finding(log_lines(lines, "EngineCore pid=3"), numbers)
    assert (bound_of(finding).bytes is not None) == holds
    assert ("computed tokens" in bound_of(finding).contradiction) != holds


def test_a_site_without_missing_numbers_has_no_empty_list() -> None:
    from dataclasses import replace

    finding = _finding([Failure().message], {})
    assert need_text(replace(finding, bound=Bound())) == "not known for this site"
