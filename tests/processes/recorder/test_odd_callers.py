"""A refused request is a finding wherever it was made from."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.processes.recorder.children import child
from wstrace.findings.analysed_run import load_run

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM's own manager")

# Who never asked before the lock is WS101: nobody else is a thread's first function. What a
# forked child's parent asked before the lock is not in the child's file.
EXPECTED = {
    "refused": {"WS102"},
    "in_a_fork": {"WS101", "WS102"},
    "in_a_fork_under_a_held_lock": {"WS101", "WS102"},
    "as_a_threads_first_function": {"WS101"},
    "in_a_signal_handler": {"WS102"},
    "in_a_layer_with_its_own_getattribute": {"WS102"},
    "of_a_second_manager": {"WS102"},
}


def test_the_refusal_is_found_and_no_code_of_a_layer_is_run(tmp_path: Path) -> None:
    done = child("odd_callers", str(tmp_path), seconds=300)
    assert done.stdout == "[]\n"  # nothing was asked of the layer
    for place, codes in EXPECTED.items():
        run = load_run(tmp_path / place)
        assert run.verdict() == "findings", place
        (escape,) = run.escapes
        assert escape.code in codes, place
    both = load_run(tmp_path / "two_managers")
    assert (both.verdict(), both.escapes) == ("inconclusive", [])
    assert [why.partition(":")[0] for why in both.inconclusive] == [
        "several WorkspaceManagers answered at one time in a worker"
    ]
