"""A run as a Chrome trace, which Perfetto opens next to a torch profiler trace.

Clock: torch's profiler writes `ts` in microseconds after `baseTimeNanoseconds`, a Unix time
that it rounds down to a quarter of a year. The same rule is used here, so traces of one
quarter line up as they are; `base_ns` takes the base of a given torch trace.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from wstrace.errors import WstraceError
from wstrace.findings.analysed_run import AnalysedRun
from wstrace.plain_files import read_plain
from wstrace.report.finding_text import step_text
from wstrace.report.verdict import sentence
from wstrace.runs.worker import Worker, rank_label
from wstrace.safe_texts.redact import redact_text
from wstrace.trace.records import (
    Capture,
    Counts,
    Failure,
    Growth,
    Lock,
    PhaseChange,
    Record,
    Request,
    ReserveEvent,
    Slot,
)
from wstrace.units import human

Event = dict[str, Any]
QUARTER_NS: Final = 7_889_238 * 10**9
"""A quarter of the mean Gregorian year, torch's rounding of its base time."""
PHASES_TID: Final = 1
EVENTS_TID: Final = 2


_LARGEST: Final = 2 << 30


class _TorchTrace(msgspec.Struct):
    """The one field that is needed of a torch profiler trace."""

    base: int = msgspec.field(name="baseTimeNanoseconds", default=0)


def torch_base(path: Path) -> int:
    """`baseTimeNanoseconds` of a torch profiler trace (.json or .json.gz), 0 for old ones.

    Raises WstraceError where the file is not such a trace.
    """
    try:
        data = read_plain(path, _LARGEST)
        if data[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
                data = packed.read(_LARGEST)
        return msgspec.json.decode(data, type=_TorchTrace).base
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise WstraceError(
            f"Not a torch profiler trace: {path} ({error}).",
            "Give the file that torch.profiler's export_chrome_trace wrote.",
        ) from error


def render_perfetto(run: AnalysedRun, base_ns: int | None = None) -> str:
    """The trace as JSON; timestamps count from `base_ns`, by default torch's own base."""
    base = _default_base(run) if base_ns is None else base_ns
    events: list[Event] = []
    for index, worker in enumerate(run.whole.workers):
        events += _rank_events(worker, index, base)
    document = {
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": base,
        "otherData": {
            "run": run.trace.run,
            "made_by": "wstrace",
            "verdict": run.verdict(),
            "sentence": sentence(run),
        },
        "traceEvents": events,
    }
    return json.dumps(document, separators=(",", ":")) + "\n"


def _default_base(run: AnalysedRun) -> int:
    first = min((worker.header.wall_ns for worker in run.workers), default=0)
    return first // QUARTER_NS * QUARTER_NS


def _rank_events(worker: Worker, index: int, base: int) -> Iterator[Event]:
    offset = worker.header.wall_offset - base
    pid = worker.header.pid or index + 1
    yield from _names(worker, pid, index)
    yield from _phases(worker, pid, offset)
    for record in worker.process.records:
        ts = (record.ns + offset) / 1000
        for event in _events(worker, record):
            yield {"pid": pid, "ts": ts, **event}


def _names(worker: Worker, pid: int, index: int) -> Iterator[Event]:
    name = rank_label(worker.ranks, worker.world)
    yield _meta(pid, 0, "process_name", name=f"vLLM workspace {name}")
    yield _meta(pid, 0, "process_sort_index", sort_index=index)
    yield _meta(pid, PHASES_TID, "thread_name", name="phases")
    yield _meta(pid, EVENTS_TID, "thread_name", name="growths and escapes")


def _meta(pid: int, tid: int, what: str, **args: object) -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "ts": 0, "name": what, "args": args}


def _phases(worker: Worker, pid: int, offset: int) -> Iterator[Event]:
    """One slice a phase, each up to the next; the last one up to the last record."""
    last = max((record.ns for record in worker.process.records), default=0)
    changes: Sequence[PhaseChange] = worker.phases
    ends = [*(change.ns for change in changes[1:]), last] if changes else []
    for change, end in zip(changes, ends, strict=True):
        yield {
            "ph": "X",
            "pid": pid,
            "tid": PHASES_TID,
            "ts": (change.ns + offset) / 1000,
            "dur": max(0, end - change.ns) / 1000,
            "name": change.phase,
            "cat": "phase",
            "args": {"step": change.step, "why": change.why},
        }


def _events(worker: Worker, record: Record) -> Iterator[Event]:
    match record:
        case Request():
            yield from _request(worker, record)
        case Growth():
            yield _counter(record.slot, "arena", record.after)
            yield _instant(_growth_name(record), record, worker)
        case Failure():
            yield _instant(f"refused {human(record.required)}", record, worker)
        case Lock():
            for slot, size in zip(record.slots, record.sizes, strict=True):
                yield _counter(slot, "arena", size)
            yield _plain(record.event, {"step": record.step})
        case Capture():
            yield _plain(f"graph {record.event}", {"throwaway": record.throwaway})
        case ReserveEvent():
            yield _plain(f"reserve {record.event}", {"why": redact_text(record.why)})
        case Counts():
            yield {"ph": "C", "name": "real steps", "args": {"steps": record.steps_real}}


def _request(worker: Worker, request: Request) -> Iterator[Event]:
    yield _counter(request.slot, "requested", request.bytes)
    if worker.seen(request).outcome == "escaped":
        yield _instant(f"escape {human(request.bytes)}", request, worker)


def _growth_name(growth: Growth) -> str:
    what = "reserve" if growth.reserve else "growth"
    return f"{what} to {human(growth.after)}"


def _counter(slot: Slot, series: str, size: int) -> Event:
    name = f"workspace {slot.text}: {series}"
    return {"ph": "C", "name": name, "args": {"bytes": size}}


def _instant(name: str, record: Request | Growth | Failure, worker: Worker) -> Event:
    args = {
        "caller": redact_text(worker.where(record.site)["caller"][:400]),
        "phase": record.phase,
        "slot": record.slot.text,
        "step": step_text(record.step),
    }
    if isinstance(record, Growth):
        args |= {"before": human(record.before), "counted": record.window}
    return _plain(name, args)


def _plain(name: str, args: dict[str, Any]) -> Event:
    return {
        "ph": "i",
        "s": "p",
        "tid": EVENTS_TID,
        "name": name,
        "cat": "workspace",
        "args": args,
    }
