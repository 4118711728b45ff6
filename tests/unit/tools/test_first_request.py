"""The measurement of a request's cost runs, and a first request is far from slow."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

from tools.bench import first_request


def test_a_first_request_is_sliced_and_quick(capsys: pytest.CaptureFixture[str]) -> None:
    """0.3 ms of CPU time where it was measured; ten times that would be another recorder."""
    first_request.main(["--sizes", "40", "--pairs", "4", "--calls", "20"])
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert found["recorded"] == found["closed"] == 44
    assert found["first_ms"] < 5
    assert set(found["seen_added_us"]) == {"no_caller", "two_callers", "two_ways"}
    assert max(found["seen_added_us"].values()) < 20
