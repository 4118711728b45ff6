"""Records that were taken out of a file, put elsewhere or said twice, by the others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wstrace.errors import WstraceError
from wstrace.findings.analysed_run import load_run

SAMPLES = Path(__file__).resolve().parents[3] / "sample_traces"
RESERVED, CAPTURED = "demo-reserved", "h200-vllm-0.21.0-moe-mxfp4"
Line = dict[str, Any]
Edit = Callable[[list[Line]], list[Line]]


def edited(folder: Path, edit: Edit, sample: str) -> list[str]:
    """Why the sample, so edited, is not clean."""
    shutil.copytree(SAMPLES / sample, folder)
    (trace,) = folder.glob("*.wst.jsonl")
    lines = edit([json.loads(line) for line in trace.read_bytes().splitlines()])
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return load_run(folder).inconclusive


def without(*kinds: str) -> Edit:
    return lambda lines: [line for line in lines if line["t"] not in kinds]


def where(keep: Callable[[Line], bool]) -> Edit:
    return lambda lines: [line for line in lines if keep(line)]


def moved(kind: str, to: int) -> Edit:
    """All records of a kind at the head (after the worker's) or at the end."""

    def edit(lines: list[Line]) -> list[Line]:
        rest = without(kind)(lines)
        taken = [line for line in lines if line["t"] == kind]
        at = to % (len(rest) + 1)
        return [*rest[:at], *taken, *rest[at:]]

    return edit


def serves(line: Line) -> bool:
    return line.get("phase") == "serving"


def in_step(line: Line) -> int:
    step = line.get("step")
    return step["index"] if isinstance(step, dict) else 0


EDITS: dict[str, tuple[Edit, str, str]] = {
    "all of serving": (where(lambda r: not serves(r)), RESERVED, "a request of 768.00 KiB"),
    "serving's requests": (
        where(lambda r: not (serves(r) and r["t"] == "request")),
        CAPTURED,
        "in serving that is in no record",
    ),
    "requests": (without("request"), RESERVED, "that is in no record"),
    "late steps": (where(lambda r: in_step(r) <= 8), RESERVED, "that is in no record"),
    "counters": (without("counts"), RESERVED, "no counters were written"),
    "sites": (without("site"), RESERVED, "names a site"),
    "growths": (without("growth"), RESERVED, "its last growth made 0 B"),
    "phases": (without("phase"), RESERVED, "no record says when that began"),
    "locks": (without("lock"), RESERVED, "which is in no record"),
    "hooks": (without("hook"), RESERVED, "which hooks were set"),
    "managers": (without("manager"), RESERVED, "names a manager"),
    "reserve": (without("reserve"), RESERVED, "what became of the reserve"),
    "captures": (without("capture"), CAPTURED, "captured in a graph"),
    "lock first": (moved("lock", 2), RESERVED, "not in the order of their times"),
    "lock last": (moved("lock", -1), RESERVED, "a phase began by lock"),
    "backwards": (lambda r: [r[0], *r[:0:-1]], RESERVED, "not in the order of their times"),
    "twice": (lambda r: [*r, *r[1:]], RESERVED, "not in the order of their times"),
}


@pytest.mark.parametrize(("edit", "sample", "told"), EDITS.values(), ids=list(EDITS))
def test_what_was_taken_out_or_put_elsewhere_is_told(
    edit: Edit, sample: str, told: str, tmp_path: Path
) -> None:
    reasons = edited(tmp_path / "t", edit, sample)
    assert [why for why in reasons if "lacks records: " in why and told in why]


def test_a_refusal_that_was_taken_out_with_its_request_is_told_by_its_site(
    tmp_path: Path,
) -> None:
    """What is refused is in no counter."""
    edit = where(lambda r: not (serves(r) and r["t"] in ("request", "failure")))
    reasons = edited(tmp_path / "t", edit, "h100-vllm-0.21.0-turboquant-crash")
    assert any("a site asked, and what it asked for is in no record" in why for why in reasons)


def test_a_second_header_is_a_file_that_was_changed(tmp_path: Path) -> None:
    with pytest.raises(WstraceError, match="another file's header"):
        edited(tmp_path / "t", lambda lines: [*lines, *lines], RESERVED)


@pytest.mark.parametrize("sample", sorted(p.parent.name for p in SAMPLES.glob("*/run.json")))
def test_nothing_is_missing_of_what_a_recorder_left(sample: str) -> None:
    """Of ten releases, on GPUs and the CPU, killed ones among them."""
    assert load_run(SAMPLES / sample).trace.doubts == []


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7, 0.9])
def test_a_file_that_ends_earlier_lacks_nothing(share: float, tmp_path: Path) -> None:
    """A process that was killed there left just that; a site is written before it asks."""

    def edit(lines: list[Line]) -> list[Line]:
        last = int(len(lines) * share)
        while lines[last - 1]["t"] == "site":
            last -= 1
        return lines[:last]

    reasons = edited(tmp_path / "t", edit, CAPTURED)
    assert not [why for why in reasons if "lacks records" in why]


def test_a_forked_child_without_its_parents_file_is_told(tmp_path: Path) -> None:
    def edit(lines: list[Line]) -> list[Line]:
        return [{**lines[0], "parent": "first.wst.jsonl"}, *lines[1:]]

    assert any(
        "first.wst.jsonl is gone" in why for why in edited(tmp_path / "t", edit, RESERVED)
    )


def test_an_engine_of_unknown_size_may_lack_ranks(tmp_path: Path) -> None:
    def edit(lines: list[Line]) -> list[Line]:
        return [{**line, "world": {}} if line["t"] == "worker" else line for line in lines]

    reasons = edited(tmp_path / "t", edit, RESERVED)
    assert reasons == ["how many ranks the engine has is in no record"]
