"""Recorded requests as a table for notebooks: one row a novel request, CSV or Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final

from wstrace.errors import WstraceError
from wstrace.runs.run import Run
from wstrace.runs.worker import Worker
from wstrace.trace.records import Request
from wstrace.trace.redact import redact_text

COLUMNS: Final[tuple[str, ...]] = (
    "run",
    "rank",
    "dp",
    "pp",
    "tp",
    "wall_ns",
    "phase",
    "after_lock",
    "step",
    "file",
    "function",
    "line",
    "caller",
    "layer",
    "ubatch",
    "lane",
    "bytes",
    "arena_bytes",
    "arena_warmup_bytes",
    "generation",
    "locked",
    "capturing",
    "escaped",
    "total_tokens",
    "num_reqs",
    "max_computed",
    "shapes",
)
Row = dict[str, Any]


def rows(run: Run) -> Iterator[Row]:
    """Every recorded request with the keys of `COLUMNS`; sizes in bytes, unknowns None."""
    for worker in run.workers:
        offset = worker.header.wall_ns - worker.header.ns
        for record in worker.process.records:
            if isinstance(record, Request):
                yield _row(run, worker, record, offset)


def _row(run: Run, worker: Worker, ask: Request, offset: int) -> Row:
    site = worker.callers.get(ask.site)
    seen = worker.seen(ask)
    step = ask.step
    return {
        "run": run.trace.run,
        "rank": worker.ranks.rank,
        "dp": worker.ranks.dp,
        "pp": worker.ranks.pp,
        "tp": worker.ranks.tp,
        "wall_ns": ask.ns + offset,
        "phase": ask.phase,
        "after_lock": seen.outcome != "before",
        "step": step.index if step else None,
        "file": redact_text(site.file) if site else None,
        "function": redact_text(site.function) if site else None,
        "line": site.line if site else None,
        "caller": redact_text(site.caller) if site else None,
        "layer": redact_text(ask.layer) or None,
        "ubatch": ask.slot.ubatch,
        "lane": ask.slot.lane,
        "bytes": ask.bytes,
        "arena_bytes": ask.arena,
        "arena_warmup_bytes": seen.arena,
        "generation": ask.generation,
        "locked": ask.locked,
        "capturing": ask.capturing,
        "escaped": seen.outcome == "escaped",
        "total_tokens": step.total_tokens if step else None,
        "num_reqs": step.num_reqs if step else None,
        "max_computed": max((r.computed for r in step.requests), default=None)
        if step
        else None,
        "shapes": " ".join(f"{spec.dtype}{spec.shape}".replace(" ", "") for spec in ask.specs),
    }


def render_csv(run: Run) -> str:
    """The table as CSV with a header line; unknown values are empty."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows(run))
    return out.getvalue()


def render_parquet(run: Run) -> bytes:
    """The table as a Parquet file. Raises WstraceError where pyarrow is missing."""
    try:
        arrow: Any = import_module("pyarrow")
        parquet: Any = import_module("pyarrow.parquet")
    except ImportError as error:
        raise WstraceError(
            "Parquet needs pyarrow, which is not installed.",
            "Install it with `pip install pyarrow`, or use --format csv.",
        ) from error
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for row in rows(run):
        for name, values in columns.items():
            values.append(row[name])
    sink = arrow.BufferOutputStream()
    parquet.write_table(arrow.table(columns, schema=_schema(arrow)), sink, compression="zstd")
    written: bytes = sink.getvalue().to_pybytes()
    return written


def _schema(arrow: Any) -> Any:
    """Fixed types: a column that is unknown throughout keeps its own."""
    texts = {"run", "phase", "file", "function", "caller", "layer", "shapes"}
    flags = {"after_lock", "locked", "capturing", "escaped"}
    types = {
        name: arrow.string()
        if name in texts
        else arrow.bool_()
        if name in flags
        else arrow.int64()
        for name in COLUMNS
    }
    return arrow.schema(list(types.items()))
