"""Random manager sequences: a layer cannot tell whether the hooks are there."""

from __future__ import annotations

import pytest

from tests.matrix.runs import Run
from wstrace.trace.records import Failure, Growth, Request

pytestmark = pytest.mark.matrix


def test_random_sequences_have_the_same_answers_with_and_without_hooks(run: Run) -> None:
    facts = run.facts("random_sequences")
    assert facts["differ"] == []
    assert facts["calls"] > 600
    assert facts["errors"] > 50


def test_the_hooks_were_there(run: Run) -> None:
    for kind in (Request, Growth, Failure):
        assert run.records("random_sequences", kind)
