"""Functions of two files whose code objects are equal: each has its own file's source.

Python compares code objects without their file, and annotations are no part of them.
"""

from __future__ import annotations

from os.path import basename
from types import FrameType

import pytest

from tests.unit.slicer.fakes import Worker
from wstrace.slicer.live.relays import leads_to
from wstrace.slicer.live.way import may_differ
from wstrace.slicer.syntax import call_at, function_source

SOURCE = """
from __future__ import annotations
import sys

class Plan: ...
class Deep(Plan): ...

def asked(plan: {annotation}):
    return sys._getframe()
"""
Pair = tuple[FrameType, FrameType]


@pytest.fixture
def frames(worker: Worker) -> Pair:
    """Frames of the same function in two files; one says `Deep`, one `Plan` of its argument."""
    first, other = (
        worker.load(SOURCE.format(annotation=annotation)) for annotation in ("Deep", "Plan")
    )
    pair = (first.asked(first.Deep()), other.asked(other.Deep()))
    assert pair[0].f_code == pair[1].f_code  # or this test holds nothing
    return pair


def test_each_has_the_source_of_its_own_file(frames: Pair) -> None:
    sources = [function_source(frame.f_code) for frame in frames]
    files = [basename(frame.f_code.co_filename) for frame in frames]
    assert [source.file for source in sources if source] == files
    calls = [call_at(frame.f_code, frame.f_lasti) for frame in frames]
    for source, call in zip(sources, calls, strict=True):
        assert source is not None
        assert id(call) in source.places


def test_the_class_that_one_names_says_nothing_of_the_other(frames: Pair) -> None:
    first, other = frames
    assert not may_differ(first, "plan", type(first.f_locals["plan"]))
    assert may_differ(other, "plan", type(other.f_locals["plan"]))


def test_an_object_that_holds_the_one_does_not_lead_to_the_other(frames: Pair) -> None:
    first, other = frames
    assert leads_to(first.f_globals["asked"], [first.f_code])
    assert not leads_to(first.f_globals["asked"], [other.f_code])
