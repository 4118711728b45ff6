"""No error of the recorder's own reaches vLLM: each of its functions is made to raise."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.processes.recorder.children import child

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM's own manager")
# Without these no failure can be written: the first leaves a note in the trace, the second a
# line on stderr. Without the writer's own functions the header's last word tells of it,
# and all others only enrich the record.
WRITES_THE_FAILURE = {
    "wstrace.recorder.hooks.requests.refused",
    "wstrace.recorder.state.output.TraceOutput.write",
}


def test_whatever_fails_in_the_recorder_vllm_answers_as_without_it(tmp_path: Path) -> None:
    done = child("injection", str(tmp_path / "trace"))
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["plain"][:2] != told["plain"][1:3]
    assert "Workspace is locked" in told["plain"][1]
    assert told["served"][:3] == ["768", "65536", "4"]
    assert len(told["tried"]) > 150
    assert told["wrong"] == {}
    assert set(told["lost"]) == WRITES_THE_FAILURE
    assert done.stderr.count("wstrace: recorder: failure: InjectedError: write") == 1
