"""A refusal in a person's own words, and a message that is not quite as vLLM prints it."""

from __future__ import annotations

import pytest

from tests.unit.triage.generator import Failure, log_of, read

SITE = "turboquant_attn.py:747:_continuation_prefill"


@pytest.mark.parametrize(
    "text",
    [
        f"Workspace locked (requires 16.00 MB, current size 1.02 MB) in {SITE}",
        f"{SITE}: 1.02 MB -> 16.00 MB but workspace is locked",
        "_continuation_prefill (turboquant_attn.py:747) needs 16.00 MB but the locked "
        "workspace has only 1.02 MB",
        "[Bug]: turboquant _continuation_prefill workspace locked: need 16.00 MB, have 1.02 MB",
        f"Failing at {SITE}.\nThe locked workspace had 1.02 MB, it requires 16.00 MB.",
        f"- site: {SITE}\n- required: 16.00 MB\n- current: 1.02 MB\n- workspace locked\n",
        "Workspace is locked but allocation from '_continuation_prefill' requires 16.00 MB, "
        "current size is 1.02 MB",
    ],
)
def test_a_place_two_sizes_and_a_locked_arena(text: str) -> None:
    (finding,) = read(text).findings
    assert finding.function == "_continuation_prefill"
    assert finding.file == "turboquant_attn.py"
    log = log_of(finding)
    assert (log.required_text, log.current_text) == ("16.00 MB", "1.02 MB")
    assert log.confidence == "likely"
    assert finding.code == "WS101"


@pytest.mark.parametrize(
    "text",
    [
        "Fix workspace growth after lock: reserve 2.00 MB -> 16.00 MB for turboquant",
        "mlock: 16.00 MB locked, needs 32.00 MB workspace",
        "The workspace of the block manager is 2.00 MB; blocks are locked and need 16.00 MB",
        f"{SITE} has 200 lines; the workspace is locked at 16.00 MB",
        "_continuation_prefill needs 16.00 MB and 1.02 MB are free",
        "a lock in workspace.py:90 needs 16.00 MB",
    ],
)
def test_other_talk(text: str) -> None:
    assert read(text).findings == []


def test_whole_megabytes_are_not_as_vllm_prints_them() -> None:
    text = (
        f"Workspace is locked but allocation from {SITE} requires 16 MB, current size is 1 MB"
    )
    (finding,) = read(text).findings
    assert log_of(finding).confidence == "likely"


def test_bytes_are_exact() -> None:
    text = (
        f"Workspace is locked but allocation from '{SITE}' requires 16777216 bytes, "
        "current size is 1069548 bytes."
    )
    (finding,) = read(text).findings
    assert (finding.serving_bytes, finding.arena_bytes) == (16_777_216, 1_069_548)


@pytest.mark.parametrize("change", [str.lower, lambda text: text.replace("MB", "mb")])
def test_letters_of_another_case(change) -> None:  # type: ignore[no-untyped-def]
    (finding,) = read(change(Failure().message)).findings
    assert finding.serving_bytes == 16 * 2**20
    assert finding.function == "_continuation_prefill"
