"""A text that only talks about the message yields no finding."""

from __future__ import annotations

import pytest

from tests.unit.triage.generator import Failure, log_lines, read

MESSAGE = Failure().message
SOURCE = """
            raise AssertionError(
                f"Workspace is locked but allocation from '{get_caller_info()}' "
                f"requires {required_bytes / _MB:.2f} MB, current size is "
                f"{current_size / _MB:.2f} MB. "
                "Workspace growth is not allowed after locking."
            )
"""
PERSISTENT = """
                raise AssertionError(
                    f"Workspace is locked but {key!r} was not allocated during "
                    "warmup for the current ubatch and lane."
                )
"""


@pytest.mark.parametrize(
    "text",
    [
        SOURCE,
        PERSISTENT,
        "\n".join("+" + line for line in SOURCE.splitlines()),
        "Workspace is locked but allocation from 'FILE:LINE:FUNC' requires X MB, current size "
        "is Y MB",
        "Workspace is locked but allocation from 'modular_kernel.py:1:f' requires N MB, ...",
        "AssertionError: Workspace is locked but allocation from '...' requires ... MB",
        "Workspace is locked but allocation from '%s' requires %.2f MB, current size is %d MB",
        "Fix AssertionError: Workspace is locked but allocation from 'a.py:f' on long prompts",
        "The assertion 'Workspace is locked' fires when a layer grows after warm-up.",
        "See the FAQ: why does it say that the workspace is locked?",
        "Each slot has its own current size, and growth is not allowed after locking.",
        "This layer requires 16.00 MB of scratch. The current size is 4.00 MB.",
        'ValueError(f"Persistent workspace {key!r} has shape={a}, dtype={b}; requested '
        'shape={c}, dtype={d}.")',
    ],
)
def test_no_finding(text: str) -> None:
    assert read(text).findings == []


@pytest.mark.parametrize(
    "text",
    [
        f'    with pytest.raises(AssertionError, match="{MESSAGE}"):',
        f'    assert "{MESSAGE}" in str(error)',
        f'grep -r "{MESSAGE}" logs/',
        f'message = f"{MESSAGE}"',
        f'    msg = ("{MESSAGE}")',
        f'+    msg = ("{MESSAGE[:70]}"\n+           "{MESSAGE[70:]}")',
        f"    # e.g. AssertionError: {MESSAGE}",
        f"+# regression: {MESSAGE}",
        f"def test_it():\n# regression: {MESSAGE}",
        f"+++ b/tests/test_ws.py\n+    call()\n# regression: AssertionError: {MESSAGE}",
        f'@@ -10,3 +10,4 @@ def test():\n line\n+    expected = """{MESSAGE}\n-    old',
    ],
)
def test_code_with_real_numbers(text: str) -> None:
    assert read(text).findings == []


def test_skipped_are_counted() -> None:
    assert read(SOURCE + PERSISTENT).skipped == 2


def test_a_log_after_a_diff_counts() -> None:
    diff = "@@ -1,2 +1,2 @@\n-old\n+new\n context"
    text = "\n".join([diff, *log_lines(Failure().traceback(), "EngineCore pid=1")])
    assert len(read(text).findings) == 1


def test_a_failure_inside_an_issue_template_counts() -> None:
    text = f"### Describe the bug\n\nWe get X MB too much:\n\n- {MESSAGE}\n"
    assert len(read(text).findings) == 1


@pytest.mark.parametrize(
    "text",
    [
        f"# [Bug]: AssertionError: {MESSAGE}",
        f"## {MESSAGE}",
        f'level=error msg="AssertionError: {MESSAGE}"',
        f"- {MESSAGE}",
        f'- "{MESSAGE}"',
        f"- #41726: AssertionError: {MESSAGE}",
        f"> AssertionError: {MESSAGE}",
        f"Our code:\n\nimport vllm\n\nfails:\n\nAssertionError: {MESSAGE}",
    ],
)
def test_what_people_paste_counts(text: str) -> None:
    assert len(read(text).findings) == 1


def test_nothing_at_all() -> None:
    found = read("INFO: Application startup complete.\n" * 50)
    assert (found.findings, found.skipped) == ([], 0)
