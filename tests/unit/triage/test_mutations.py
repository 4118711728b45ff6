"""Whatever is done to a log on its way into an issue, the facts stay."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.triage.generator import (
    FORMATS,
    Failure,
    expected,
    facts,
    log_lines,
    log_of,
    read,
)
from wstrace.safe_texts.redact import redact_text

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
# But for those that look like a token, such as hf_00000000: these are not shown.
NAMES = st.from_regex(r"_?[a-z][a-z0-9_]{2,24}", fullmatch=True).filter(
    lambda name: redact_text(name) == name
)
SIZES = st.integers(0, 60_000_00).map(lambda cents: cents / 100)


@st.composite
def failures(draw: st.DrawFn) -> Failure:
    current = draw(SIZES)
    return Failure(
        file=draw(NAMES) + ".py",
        line=draw(st.integers(1, 9999)),
        function=draw(NAMES),
        required=current + draw(st.integers(1, 100_000)) / 100,
        current=current,
    )


def _rewrapped(text: str, cuts: list[int], indent: str) -> list[str]:
    points = sorted({0, len(text), *(cut % len(text) for cut in cuts)})
    return [(indent if start else "") + text[start:end] for start, end in pairwise(points)]


@QUICK
@given(
    failures(),
    st.lists(st.integers(0, 400), max_size=6),
    st.sampled_from(["", "  ", "\t", "    "]),
    st.sampled_from(list(FORMATS)),
    st.booleans(),
)
def test_rewrapped_and_dressed(
    failure: Failure, cuts: list[int], indent: str, form: str, labelled: bool
) -> None:
    lines = _rewrapped(failure.message, cuts, indent)
    if labelled:
        lines = log_lines(lines, "EngineCore pid=9")
    text = "\n".join(FORMATS[form](lines))
    assert facts(read(text)) == {expected(failure)}


@pytest.mark.parametrize("cuts", [[41], [42], [43, 45], [41, 42, 50], [47, 49], [47, 49, 53]])
def test_a_prefix_without_a_mark_inside_the_caller(cuts: list[int]) -> None:
    """stern's pod and container are two bare words; the wrap is in the file's name."""
    failure = Failure(file="a00.py", line=1, function="aaa", required=1.01, current=0.0)
    lines = _rewrapped(failure.message, cuts, "")
    text = "\n".join(FORMATS["stern"](lines))
    assert facts(read(text)) == {("a00.py", 1, "aaa", "1.01 MB", "0.00 MB")}


@QUICK
@given(failures(), st.sampled_from(list(FORMATS)), st.integers(60, 200))
def test_html_escaped_then_wrapped(failure: Failure, form: str, width: int) -> None:
    escaped = FORMATS["html"]([failure.message])[1]
    lines = [escaped[start : start + width] for start in range(0, len(escaped), width)]
    assert facts(read("\n".join(FORMATS[form](lines)))) == {expected(failure)}


@QUICK
@given(failures(), st.integers(0, 300))
def test_cut_short_never_invents(failure: Failure, cut: int) -> None:
    message = f"AssertionError: {failure.message}"
    found = read("died: " + message[: cut % len(message)]).findings
    for finding in found:
        told = (
            finding.file, log_of(finding).line, finding.function,
            log_of(finding).required_text, log_of(finding).current_text,
        )  # fmt: skip
        wanted = expected(failure)
        assert all(
            mine in (None, "", theirs) for mine, theirs in zip(told, wanted, strict=True)
        )
    numbers_at = message.index("MB, current") + 2
    if cut % len(message) >= numbers_at:
        assert log_of(found[0]).required_text == expected(failure)[3]


@QUICK
@given(failures(), st.integers(0, 24))
def test_beginning_cut_off(failure: Failure, cut: int) -> None:
    start = failure.message.index(f"'{failure.file}") + 1
    text = failure.message[min(cut, start) :]
    assert facts(read(text)) == {expected(failure)}


@QUICK
@given(failures(), failures(), st.lists(st.booleans(), min_size=60, max_size=60), st.booleans())
def test_two_ranks_interleaved(
    one: Failure, other: Failure, order: list[bool], wrap: bool
) -> None:
    queues = []
    for rank, failure in ((0, one), (1, other)):
        lines = failure.traceback()
        if wrap:
            lines = [*lines[:-1], *_rewrapped(lines[-1], [70, 140], "")]
        queues.append(log_lines(lines, f"Worker_TP{rank} pid=10{rank}"))
    text = []
    for first in order:
        queue = queues[0] if (first and queues[0]) or not queues[1] else queues[1]
        if queue:
            text.append(queue.pop(0))
    found = read("\n".join(text + queues[0] + queues[1]))
    assert {
        (f.ranks[0].tp, f.file, f.function, log_of(f).required_text) for f in found.findings
    } == {
        (0, one.file, one.function, f"{one.required:.2f} MB"),
        (1, other.file, other.function, f"{other.required:.2f} MB"),
    }


@QUICK
@given(failures(), st.binary(max_size=300), st.binary(max_size=300))
def test_rubbish_around_does_not_matter(failure: Failure, before: bytes, after: bytes) -> None:
    junk = [bytes(c for c in part if c > 31 and c != 39) for part in (before, after)]
    text = b"log:" + junk[0] + b"\n\n" + failure.message.encode() + b"\n\n" + junk[1]
    assert facts(read(text)) == {expected(failure)}
