"""The measurement of a request's cost runs, and a first request is far from slow."""

from __future__ import annotations

import dis
import gc
import json
from types import CodeType
from typing import Any

import pytest

pytest.importorskip("torch")

from tools.bench import first_request
from wstrace.recorder.hooks.posing import CODE_NAME
from wstrace.recorder.hooks.requests import wrap_ensure


def test_a_first_request_is_sliced_and_quick(capsys: pytest.CaptureFixture[str]) -> None:
    """0.3 ms of CPU time where it was measured; ten times that would be another recorder."""
    gc.freeze()  # the measurement collects garbage 14 times, and other tests' is not its own
    first_request.main(["--sizes", "40", "--pairs", "4", "--calls", "20"])
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert found["recorded"] == found["closed"] == 45
    assert found["first_ms"] < 5
    assert set(found["seen_added_us"]) == {"no_caller", "one_caller", "two_callers", "two_ways"}
    assert set(found["look_us"]) == {"no_caller", "one_caller", "two_callers"}
    assert max(found["seen_added_us"].values()) < 20
    assert found["again"].keys() == {"first_ms", *found["middle_half_us"]}
    said = first_request.told(found)
    assert "Measured twice" in said
    found["again"]["look_us"]["one_caller"] = (
        found["middle_half_us"]["look_us"]["one_caller"][1] + 1
    )
    assert "look one caller" in first_request.told(found).rpartition("outside")[2]


def test_without_the_look_another_caller_is_not_seen() -> None:
    """The bench compares with code that lacks the look, not with the same code twice."""
    seen = {}
    for name, made in (("whole", wrap_ensure), ("blind", first_request.without_look())):
        source = [step.argval for step in dis.get_instructions(_inner(made))]
        seen[name] = source.count("f_back")
    assert seen == {"whole": 2, "blind": 0}


def _inner(maker: Any) -> CodeType:
    """The wrapper's code in that of its maker's maker."""
    return _named(_named(maker.__code__, "make"), CODE_NAME.split(".")[1])


def _named(code: CodeType, name: str) -> CodeType:
    inner = [c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name]
    return inner[0]
