"""Kinds of texts that a newcomer saw read wrongly, each with the right answer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.unit.triage.generator import read
from wstrace.findings.finding import Finding, FromLog
from wstrace.triage.diagnose.numbers import Given
from wstrace.triage.report import Report, incidents
from wstrace.triage.report import read as triage

if TYPE_CHECKING:
    from pathlib import Path

SITE = "turboquant_attn.py:747:_continuation_prefill"
MESSAGE = (
    f"Workspace is locked but allocation from '{SITE}' requires 9.94 MB, current size is "
    "2.05 MB. Workspace growth is not allowed after locking."
)
HEADS = Given({"num_kv_heads": 4, "head_size": 128, "block_size": 16})
PROVED = 67_108_864
"""32768 tokens rounded to blocks, keys and values, 4 heads of 128 in 2 bytes."""


def _log(finding: Finding) -> FromLog:
    assert finding.log is not None
    return finding.log


def _bytes(text: str) -> int | None:
    (finding,) = read(text, HEADS).findings
    assert finding.bound is not None
    return finding.bound.bytes


@pytest.mark.parametrize(
    "sentence",
    [
        "Before it ran with `vllm serve m --max-model-len 8192` without problems.",
        "Last week I used vllm serve m --max-model-len 8192",
        "The same box was OK with `vllm serve m --max-model-len 8192`, it works fine there.",
        "Previously: we had `vllm serve m --max-model-len 8192`.",
        "I also tried vllm serve m --max-model-len 8192 and it crashes too",
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_another_command_makes_no_bound_smaller(sentence: str, first: bool) -> None:
    command = "vllm serve m --max-model-len 32768"
    lines = [sentence, "", command] if first else [command, "", sentence]
    assert _bytes("\n".join(["vLLM 0.22.0", *lines, f"AssertionError: {MESSAGE}"])) == PROVED


@pytest.mark.parametrize(
    "sentence",
    [
        "Before the crash I ran `vllm serve m --max-model-len 32768`.",
        "I start it with `vllm serve m --max-model-len 32768`. Without it all works fine.",
        "vllm serve m --max-model-len 32768  # worked until yesterday",
    ],
)
def test_the_only_command_of_the_failing_run_counts(sentence: str) -> None:
    assert _bytes(f"vLLM 0.22.0\n{sentence}\n\nAssertionError: {MESSAGE}") == PROVED


def test_commands_that_disagree_are_named() -> None:
    text = (
        "vllm serve m --max-model-len 32768\nor\n\n\nvllm serve m --max-model-len 16384\n"
        f"AssertionError: {MESSAGE}"
    )
    (finding,) = read(text, HEADS).findings
    assert finding.bound is not None
    assert finding.bound.bytes == PROVED
    assert any("max_model_len (16384, 32768)" in line for line in _log(finding).evidence)


def test_the_logs_own_line_decides_between_commands() -> None:
    text = (
        "vllm serve m --max-model-len 65536\n\n\n\nvllm serve m --max-model-len 16384\n"
        f"INFO [model.py:1] Using max model len 32768\nAssertionError: {MESSAGE}"
    )
    assert _bytes(text) == PROVED


@pytest.mark.parametrize(
    ("required", "current", "shown"),
    [
        ("9,94", "2,05", ("9.94 MB", "2.05 MB")),
        ("1,024.00", "2.05", ("1024.00 MB", "2.05 MB")),
        ("1,024", "2,5", ("1024 MB", "2.5 MB")),
    ],
)
def test_a_comma_before_two_digits_is_a_decimal_one(
    required: str, current: str, shown: tuple[str, str]
) -> None:
    text = MESSAGE.replace("9.94", required).replace("2.05", current)
    (finding,) = read(f"AssertionError: {text}").findings
    assert (_log(finding).required_text, _log(finding).current_text) == shown


def test_a_message_inside_another_ones_line_keeps_its_rank() -> None:
    text = (
        f"(Worker_TP0 pid=1) ERROR AssertionError: Workspace is locked but allocation from "
        f"'{SITE}' requires 8.06 MB, curr(Worker_TP1 pid=2) ERROR AssertionError: Workspace is "
        "locked but allocation from 'turboquant_attn.py:879:_decode_attention' requires "
        "1.25 MB, current size is 0.76 MB. Workspace growth is not allowed after locking.\n"
        "ent size is 0.70 MB. Workspace growth is not allowed after locking.\n"
    )
    found = {
        f.function: (_log(f).required_text, _log(f).current_text, [r.tp for r in f.ranks])
        for f in read(text).findings
    }
    assert found == {
        "_continuation_prefill": ("8.06 MB", "0.70 MB", [0]),
        "_decode_attention": ("1.25 MB", "0.76 MB", [1]),
    }


@pytest.mark.parametrize(
    "quote",
    [
        'If you ever see "{}", it means that warm-up was too small.',
        "This PR fixes: {}",
        "This PR fixes the error:\n\n{}",
        "This patch avoids AssertionError: {}",
        "We no longer see: {}",
        "We do not see the error any more: {}",
        "Unlike #41726 ({}) my server does not crash",
        "# raises: {}",
        "/* {} */",
        "// {}",
        'msgid "{}"',
        "+    {}",
    ],
)
def test_a_quote_is_possible_at_most(quote: str) -> None:
    for finding in read(quote.format(MESSAGE)).findings:
        assert _log(finding).confidence == "possible"
        assert finding.severity == "note"


@pytest.mark.parametrize(
    "report",
    [
        "{}",
        "I see: {}",
        "Please fix: {}",
        "# Bug: {}",
        "- {}",
        "After this change I get: {}",
        "I do not understand why I see: {}",
        "Since the commit of Monday, which fixes another crash, we see: {}",
        "(EngineCore pid=7) ERROR 05-05 14:00:00 [core.py:1] AssertionError: {}",
    ],
)
def test_a_report_is_certain(report: str) -> None:
    (finding,) = read(report.format(MESSAGE)).findings
    assert (_log(finding).confidence, finding.severity) == ("certain", "error")


def _issue(number: int, version: str, rank: int, size: str = "9.94") -> dict[str, object]:
    said = f"(Worker_TP{rank} pid=1) ERROR AssertionError: {MESSAGE.replace('9.94', size)}"
    body = f"vLLM {version}\n```\n{said}\n```\n"
    return {"url": "u", "number": number, "title": "It dies", "comments": 2, "body": body}


def _threads(tmp_path: Path, found: object) -> Report:
    path = tmp_path / "issues.json"
    path.write_text(json.dumps(found))
    return triage([str(path)], Given())


def test_a_list_of_issues_is_one_thread_each(tmp_path: Path) -> None:
    report = _threads(tmp_path, [_issue(5, "0.21.0", 0), _issue(7, "0.22.0", 1, "8.06")])
    found = [(_log(f).part, _log(f).version, [r.tp for r in f.ranks]) for f in report.findings]
    assert found == [("issue 5", "0.21.0", [0]), ("issue 7", "0.22.0", [1])]
    same = _threads(tmp_path, [_issue(5, "0.21.0", 0), _issue(7, "0.21.0", 1, "8.06")])
    assert len(incidents(same.findings)) == 2


def test_one_issue_whose_comments_are_a_number(tmp_path: Path) -> None:
    (finding,) = _threads(tmp_path, _issue(5, "0.21.0", 0)).findings
    assert (_log(finding).version, _log(finding).part) == ("0.21.0", "")
    assert [rank.tp for rank in finding.ranks] == [0]


def test_a_list_of_comments_is_one_thread(tmp_path: Path) -> None:
    comments = [
        {"html_url": "u", "body": "vLLM 0.21.0 dies too"},
        {"html_url": "v", "body": f"AssertionError: {MESSAGE}"},
    ]
    (finding,) = _threads(tmp_path, comments).findings
    assert _log(finding).part == "comment 2"


@pytest.mark.parametrize(
    "words",
    [
        "workspace locked in {} (required 9.94 MB, only 2.05 MB available)",
        "{} needs 9.94 MB; the current size of the arena: 2.05 MB",
        "the arena: {} wanted 9.94 MB, 2.05 MB were left",
    ],
)
def test_a_caller_with_two_sizes_in_other_words(words: str) -> None:
    (finding,) = read(words.format(SITE)).findings
    log = _log(finding)
    assert (log.required_text, log.current_text) == ("9.94 MB", "2.05 MB")
    assert log.confidence in ("likely", "possible")


def test_two_sizes_without_a_lock_and_of_no_known_caller_are_no_refusal() -> None:
    text = "other.py:7:forward needs 9.94 MB; the current size of the arena: 2.05 MB"
    assert read(text).findings == []


@pytest.mark.parametrize("words", ["not initialized", "is not initialized"])
def test_a_manager_that_nobody_made(words: str) -> None:
    (relative,) = read(f"AssertionError: WorkspaceManager {words}").relatives
    assert relative.kind == "no_manager"


def test_a_prefix_inside_a_json_object_cuts_no_name() -> None:
    """Found by test_mutations: the name of the file was cut where its line was."""
    head = "(EngineCore pid=9) ERROR 05-05 14:02:37 [core.py:1138] "
    first, second = (
        "Workspace is locked but allocation from 'a",
        "00.py:1:a00' requires 0.01 MB, ",
    )
    text = f"{head}{first}\n{head}{second}current size is 0.00 MB."
    (finding,) = read(json.dumps({"level": "error", "exception": text})).findings
    assert finding.caller.startswith("a00.py:1")
