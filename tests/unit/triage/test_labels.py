"""Process labels: the ranks they name reach the verdict, also from a log past the budget."""

from __future__ import annotations

from io import BytesIO

import pytest

from tests.unit.triage.generator import ASSIGNED, FORMATS, HEADS, LABELS, Failure, read
from wstrace.triage.extract.parser import parse
from wstrace.triage.ingest import opening
from wstrace.triage.ingest.prefilter import Prefilter
from wstrace.triage.ingest.prefixes import Unwrapper
from wstrace.triage.ingest.vllm_prefix import LABEL_REACH, process_before

FAILURE = Failure()
PAD = "(APIServer pid=1) INFO 05-05 14:00:00 [loggers.py:1] Running: 0 reqs\n" * 100


def _lines(spelling: str, tp: int) -> list[str]:
    label = LABELS[spelling].format(tp=tp)
    start = [] if "Worker_" in label else [f"{label} {ASSIGNED.format(tp=tp)}"]
    head = f"{label} ERROR 05-05 14:02:37 [core.py:1138] "
    return start + [head + line for line in FAILURE.traceback()]


def _text(form: str, spelling: str, tp: int) -> str:
    return "\n".join(FORMATS[form](_lines(spelling, tp))) + "\n"


def _ranks(text: str) -> set[int | None]:
    return {ranks.tp for finding in read(text).findings for ranks in finding.ranks}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("spelling", LABELS)
def test_past_the_budget_the_second_rank_is_kept(
    form: str, spelling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 fails until the budget is spent, and then rank 1 says the same once."""
    one, size = _text(form, spelling, 0), len(_text(form, spelling, 0))
    monkeypatch.setattr(Prefilter.__init__, "__defaults__", (size,))
    monkeypatch.setattr(opening, "SAMPLE", size)
    monkeypatch.setattr(opening.blocks, "__defaults__", (2 * size,))
    text = one * 12 + PAD + _text(form, spelling, 1) + PAD
    found = read(text)
    assert any("repeat what was read" in note for note in found.notes)
    said = "its label in bytes without blanks: vllm_prefix._SQUEEZED"
    assert {ranks.tp for finding in found.findings for ranks in finding.ranks} == {0, 1}, said


@pytest.mark.parametrize("spelling", LABELS)
def test_both_ranks_are_read_from_a_log_that_is_read_whole(spelling: str) -> None:
    text = _text("plain", spelling, 0) + _text("plain", spelling, 1)
    assert _ranks(text) == {0, 1}, "its label in text: vllm_prefix._LABEL"


@pytest.mark.parametrize("label", ["", "(Worker_TP0 pid=100) "])
@pytest.mark.parametrize("spelling", HEADS)
def test_a_head_goes_and_its_level_and_runner_are_kept(spelling: str, label: str) -> None:
    head, v2 = HEADS[spelling]
    (line,) = Unwrapper().lines(f"{label}{head}{FAILURE.message}", 1)
    assert (line.text, line.error) == (FAILURE.message, True)
    text = "\n".join(label + head + each for each in FAILURE.traceback())
    assert parse(BytesIO(text.encode()), "x.log")[0].v2_runner is v2


def test_a_real_log_past_the_budget_keeps_both_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = 1 << 20
    monkeypatch.setattr(Prefilter.__init__, "__defaults__", (budget,))
    first, second = _text("plain", "tp", 0), _text("plain", "tp", 1)
    text = first * (budget // len(first) + 2000) + PAD * 300 + second + PAD * 300
    assert len(text) > budget + (2 << 20)
    assert _ranks(text) == {0, 1}


def test_a_process_that_restarts_is_the_same_and_one_of_many_is_not() -> None:
    message = b"Workspaceislocked"

    def process(label: bytes) -> bytes:
        return process_before(label + message, len(label))

    assert process(b"(Worker_TP0pid=7)") == process(b"(Worker_TP0pid=8)") == b"Worker_TP0"
    assert process(b"(RayWorkerWrapperpid=7)") != process(b"(RayWorkerWrapperpid=8)")
    assert process(b"(Worker_TP0pid=7)f(x)") == b"Worker_TP0"
    assert process(b"(x)") == process(b"(Worker_TP0pid=7)" + b"x" * LABEL_REACH) == b""
