"""The same facts through every wrapping of a log."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pytest

from tests.unit.triage.generator import (
    FORMATS,
    LAUNCHERS,
    LEARNT,
    WHOLE_LINES,
    Failure,
    expected,
    facts,
    log_lines,
    log_of,
    read,
    wrapped,
)
from wstrace.trace.records import Ranks
from wstrace.triage.ingest import prefixes

FAILURE = Failure()
LABEL = "Worker_TP1_EP1 pid=101"


@pytest.mark.parametrize("form", WHOLE_LINES)
@pytest.mark.parametrize("prefix", ["vllm", "none"])
def test_whole_lines(form: str, prefix: str) -> None:
    lines = FAILURE.traceback()
    if prefix == "vllm":
        lines = log_lines(lines, LABEL)
    found = read("\n".join(WHOLE_LINES[form](lines)))
    assert facts(found) == {expected(FAILURE)}
    launched = (Ranks(rank=3),) if form in LAUNCHERS else ()
    assert found.findings[0].ranks == ((Ranks(tp=1, ep=1),) if prefix == "vllm" else launched)


def named_by_a_prefix() -> dict[str, re.Pattern[str]]:
    """The expressions of collectors' prefixes: those that say whose a line is, and a few."""
    found = {n: p for n, p in vars(prefixes).items() if isinstance(p, re.Pattern)}
    others = ("_CRI", "_NUMBERED", "_QUOTE", "_ANSI")
    return {
        n: p for n, p in found.items() if p.groupindex.keys() & {"key", "rank"} or n in others
    }


def test_every_prefix_of_a_collector_has_its_form() -> None:
    lines = [
        line
        for name, form in WHOLE_LINES.items()
        if name != "plain"
        for line in form(log_lines(FAILURE.traceback(), LABEL))
    ]
    known = named_by_a_prefix()
    assert len(known) >= 11
    missing = [n for n, p in known.items() if not any(p.search(line) for line in lines)]
    assert missing == [], "no form of generator.py has it"


def texts(lines: list[str]) -> list[str]:
    """What stands in the lines, without wrapping, blank ones and a box's right edge."""
    found = prefixes.Unwrapper().lines("\n".join(lines), 1)
    return [text for line in found if (text := line.text.strip(" │"))]


def known_by_code(form: Callable[[Sequence[str]], list[str]], width: int) -> bool:
    """Whether the code leaves nothing of a form but the lines. A verdict does not tell: the
    message is found behind any prefix."""
    lines = wrapped(FAILURE.traceback(), width)
    plain = texts(lines)
    return texts(form(lines))[-len(plain) :] == plain  # a record may have a text before them


@pytest.mark.parametrize("width", [33, 80, 1000])
@pytest.mark.parametrize("form", [form for form in WHOLE_LINES if form not in LEARNT])
def test_code_takes_each_form_off_lines_without_a_label(form: str, width: int) -> None:
    assert known_by_code(WHOLE_LINES[form], width), "prefixes.py does not know it"


@pytest.mark.parametrize("prefix", ['{job="vllm"} ', "<vllm@gpu01> ", "vllm-0 server "])
def test_a_prefix_that_no_code_knows_is_told(prefix: str) -> None:
    assert not known_by_code(lambda lines: [prefix + line for line in lines], 1000)


@pytest.mark.parametrize("form", LEARNT)
def test_a_learnt_prefix_is_taken_off_behind_a_labelled_line(form: str) -> None:
    (label,), lines = log_lines(["Traceback:"], LABEL), FAILURE.traceback()
    assert texts(WHOLE_LINES[form]([label, *lines])) == texts([label, *lines])


@pytest.mark.parametrize("width", [20, 33, 47, 80, 120])
@pytest.mark.parametrize("form", FORMATS)
def test_wrapped_before_the_collector(form: str, width: int) -> None:
    lines = wrapped([f"AssertionError: {FAILURE.message}"], width)
    assert facts(read("\n".join(FORMATS[form](lines)))) == {expected(FAILURE)}


@pytest.mark.parametrize("width", [24, 41, 57, 80, 133])
def test_message_wrapped_under_the_prefix(width: int) -> None:
    lines = log_lines(wrapped([FAILURE.message], width), LABEL)
    assert facts(read("\n".join(lines))) == {expected(FAILURE)}


@pytest.mark.parametrize("width", range(70, 140, 7))
def test_terminal_wraps_prefixed_lines(width: int) -> None:
    lines = wrapped(log_lines(FAILURE.traceback(), LABEL), width)
    found = read("\n".join(lines))
    assert facts(found) == {expected(FAILURE)}
    assert found.findings[0].ranks[0].tp == 1


@pytest.mark.parametrize("quote", ["‘{}’", "“{}”", "`{}`", '"{}"', "&#39;{}&#39;", "\\'{}\\'"])
def test_quotes_of_every_kind(quote: str) -> None:
    site = f"{FAILURE.file}:{FAILURE.line}:{FAILURE.function}"
    text = FAILURE.message.replace(f"'{site}'", quote.format(site))
    assert facts(read(text)) == {expected(FAILURE)}


def test_windows_paths() -> None:
    lines = FAILURE.traceback("C:\\Users\\u\\AppData\\Lib\\site-packages", "\\")
    found = read("\r\n".join(log_lines(lines, "EngineCore pid=7972")))
    assert facts(found) == {expected(FAILURE)}
    assert log_of(found.findings[0]).module == "vllm/v1/attention/backends/turboquant_attn.py"


def test_utf16_of_a_windows_shell() -> None:
    text = "\r\n".join(log_lines(FAILURE.traceback(), "EngineCore pid=1"))
    assert facts(read(text.encode("utf-16"))) == {expected(FAILURE)}


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: Worker failed with error '{}', please check the stack trace above",
        "RuntimeError('{}')",
        'RuntimeError("{}")',
        "ray.exceptions.RayTaskError(AssertionError): ray::Worker()\nAssertionError: {}",
        "{} [repeated 3x across cluster]",
        "The engine died with `AssertionError: {}` yesterday.",
        "Exception ignored: {}\n\nDuring handling of the above exception, another occurred:",
        "'Traceback (most recent call last):\\n  File \"x.py\", line 1\\nError: {}\\n'",
    ],
)
def test_nested_in_other_texts(text: str) -> None:
    assert facts(read(text.format(FAILURE.message))) == {expected(FAILURE)}


def test_structured_logger_with_an_escaped_traceback() -> None:
    import json

    line = {"event": "boom", "exc_info": "\n".join(FAILURE.traceback()), "host": "gpu01"}
    found = read(json.dumps(json.dumps(line)))
    assert facts(found) == {expected(FAILURE)}


def test_a_terminal_wraps_compose_lines() -> None:
    lines = FORMATS["compose"](log_lines([FAILURE.message], LABEL))
    found = read("\n".join(wrapped(lines, 80)))
    assert facts(found) == {expected(FAILURE)}
    assert found.findings[0].ranks[0].tp == 1


def test_an_unknown_prefix_learnt_from_labelled_lines() -> None:
    first, second = FAILURE.message[:120], FAILURE.message[120:]
    text = (
        f"node7/a> (Worker_TP1 pid=3) ERROR 05-05 14:02:37 [x.py:1] {first}\nnode7/a> {second}"
    )
    found = read(text)
    assert facts(found) == {expected(FAILURE)}
    assert found.findings[0].ranks[0].tp == 1


def test_docker_splits_long_json_records() -> None:
    import json

    half = len(FAILURE.message) // 2
    parts = [FAILURE.message[:half], FAILURE.message[half:] + "\n"]
    text = "\n".join(json.dumps({"log": part, "stream": "stderr"}) for part in parts)
    assert facts(read(text)) == {expected(FAILURE)}


def test_ray_worker_label_with_address() -> None:
    lines = [f"(RayWorkerWrapper pid=12, ip=192.0.2.7) {x}" for x in FAILURE.traceback()]
    assert facts(read("\n".join(lines))) == {expected(FAILURE)}


@pytest.mark.parametrize(
    ("words", "ep"),
    [
        ("EP rank N/A", None),
        ("EP rank 5", 5),
        ("ETP rank 0, EP rank 5, EPLB rank 5", 5),  # 0.30.0 on
        ("ETP rank N/A, EP rank N/A, EPLB rank N/A", None),
    ],
)
def test_ranks_of_a_ray_worker_from_its_assignment(words: str, ep: int | None) -> None:
    label = "(RayWorkerWrapper pid=12, ip=192.0.2.7)"
    assigned = (
        f"{label} INFO 05-05 14:00:00 [parallel_state.py:1700] rank 5 in world size 8 is "
        f"assigned as DP rank 0, PP rank 1, PCP rank 0, TP rank 1, {words}"
    )
    text = "\n".join([assigned, *(f"{label} {line}" for line in FAILURE.traceback())])
    assert read(text).findings[0].ranks == (Ranks(dp=0, pp=1, tp=1, ep=ep),)
