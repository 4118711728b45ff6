"""Rows of an analysed run, and the DataFrames made of them. pandas loads when one is made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from wstrace.findings.analysed_run import AnalysedRun
from wstrace.findings.finding import Finding
from wstrace.frames.columns import FINDINGS, REQUESTS, SITES, STEPS, Column
from wstrace.runs.run import RunSite
from wstrace.runs.worker import Worker
from wstrace.safe_texts.redact import redact_text
from wstrace.trace.records import Phase, Ranks, Request, Step

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[str, Any]


def requests(run: AnalysedRun) -> pd.DataFrame:
    """A row a recorded request, in the order of each worker's file."""
    return frame(REQUESTS, request_rows(run))


def sites(run: AnalysedRun) -> pd.DataFrame:
    """A row a site and slot over all ranks, the largest request first."""
    return frame(SITES, site_rows(run))


def steps(run: AnalysedRun) -> pd.DataFrame:
    """A row a step of a worker in which a request was recorded; other steps left no record."""
    return frame(STEPS, step_rows(run))


def findings(found: Iterable[Finding], run: str | None) -> pd.DataFrame:
    """A row a finding, the worst first. `run` is None for a log's."""
    return frame(FINDINGS, finding_rows(found, run))


def frame(columns: Sequence[Column], rows: Iterable[Row]) -> pd.DataFrame:
    """A DataFrame with these columns and dtypes, also where there is no row."""
    import pandas as pd

    kept = list(rows)
    series = {c.name: pd.Series([r[c.name] for r in kept], dtype=_dtype(c)) for c in columns}
    return pd.DataFrame(series)


def _dtype(column: Column) -> Any:
    import pandas as pd

    if column.categories:
        return pd.CategoricalDtype(list(column.categories), ordered=True)
    return column.dtype


def request_rows(run: AnalysedRun) -> Iterator[Row]:
    """Every recorded request with the keys of `REQUESTS`; unknown values are None."""
    for worker, request, wall_ns in _requests(run):
        seen = worker.seen(request)
        yield {
            "run": run.trace.run,
            **_ranks(worker.ranks),
            "wall_ns": wall_ns,
            "phase": request.phase,
            "after_lock": seen.outcome != "before",
            "step": request.step.index if request.step else None,
            **_site_of(worker, request),
            "layer": redact_text(request.layer) or None,
            "ubatch": request.slot.ubatch,
            "lane": request.slot.lane,
            "bytes": request.bytes,
            "arena_bytes": request.arena,
            "arena_warmup_bytes": seen.arena,
            "generation": request.generation,
            "locked": request.locked,
            "capturing": request.capturing,
            "escaped": seen.outcome == "escaped",
            **_step_state(request.step),
            "shapes": " ".join(
                f"{spec.dtype}{spec.shape}".replace(" ", "") for spec in request.specs
            ),
        }


def _requests(run: AnalysedRun) -> Iterator[tuple[Worker, Request, int]]:
    """Each recorded request with its worker and its time since 1970 in ns."""
    for worker in run.whole.workers:
        offset = worker.header.wall_offset
        for record in worker.process.records:
            if isinstance(record, Request):
                yield worker, record, record.ns + offset


def _ranks(ranks: Ranks) -> Row:
    return {"rank": ranks.rank, "dp": ranks.dp, "pp": ranks.pp, "tp": ranks.tp}


def _site_of(worker: Worker, request: Request) -> Row:
    site = worker.callers.get(request.site)
    if site is None:
        return dict.fromkeys(("file", "function", "line", "caller"))
    return {
        "file": redact_text(site.file),
        "function": redact_text(site.function),
        "line": site.line,
        "caller": redact_text(site.caller),
    }


def _step_state(step: Step | None) -> Row:
    if step is None:
        names = ("total_tokens", "num_reqs", "max_computed", "step_kind", "draft_tokens")
        return dict.fromkeys(names)
    return {
        "total_tokens": step.total_tokens,
        "num_reqs": step.num_reqs,
        "max_computed": max((r.computed for r in step.requests), default=None),
        "step_kind": step.kind,
        "draft_tokens": step.draft_tokens,
    }


def step_rows(run: AnalysedRun) -> Iterator[Row]:
    """The steps of `steps`, each worker's in order, with the keys of `STEPS`."""
    grouped: dict[tuple[int, Phase, int], list[tuple[Worker, Request, int]]] = {}
    for worker, request, wall_ns in _requests(run):
        if request.step is not None:
            key = (id(worker), request.phase, request.step.index)
            grouped.setdefault(key, []).append((worker, request, wall_ns))
    for seen in grouped.values():
        worker, first, wall_ns = seen[0]
        step = first.step or Step(0)
        yield {
            "run": run.trace.run,
            **_ranks(worker.ranks),
            "step": step.index,
            "phase": first.phase,
            "wall_ns": wall_ns,
            **_step_state(step),
            "max_scheduled": max((r.scheduled for r in step.requests), default=None),
            "requests": len(seen),
            "bytes": max(request.bytes for _, request, _ in seen),
            "escaped": any(worker.seen(request).outcome == "escaped" for _, request, _ in seen),
        }


def site_rows(run: AnalysedRun) -> Iterator[Row]:
    """The sites of `sites` with the keys of `SITES`."""
    for site in run.sites:
        yield {"run": run.trace.run, **_site_row(site)}


def _site_row(site: RunSite) -> Row:
    return {
        "file": redact_text(site.key.file),
        "function": redact_text(site.key.function),
        "caller": redact_text(site.caller),
        "ubatch": site.slot.ubatch,
        "lane": site.slot.lane,
        "warmup_bytes": site.warmup_bytes,
        "serving_bytes": site.serving_bytes,
        "arena_bytes": site.arena_bytes,
        "bound_bytes": site.bound.bytes,
        "grade": site.bound.grade,
        "formula": site.bound.formula,
        "escaped": site.outcome == "escaped",
        "calls": site.calls,
        "requests": sum(use.recorded for _, use in site.uses),
        "ranks": len(site.ranks),
        "layers": len(site.layers),
        "replayed": site.replayed,
    }


def finding_rows(found: Iterable[Finding], run: str | None) -> Iterator[Row]:
    """The findings of `findings` with the keys of `FINDINGS`."""
    for finding in found:
        yield {"run": run, **_finding_row(finding)}


def _finding_row(finding: Finding) -> Row:
    slot, bound = finding.slot, finding.bound
    return {
        "code": finding.code,
        "severity": finding.severity,
        "title": finding.title,
        "file": redact_text(finding.file) or None,
        "function": redact_text(finding.function) or None,
        "caller": redact_text(finding.caller) or None,
        "ubatch": slot.ubatch if slot else None,
        "lane": slot.lane if slot else None,
        "ranks": len(finding.ranks),
        "layers": len(finding.layers),
        "warmup_bytes": finding.warmup_bytes,
        "serving_bytes": finding.serving_bytes,
        "arena_bytes": finding.arena_bytes,
        "bound_bytes": bound.bytes if bound else None,
        "grade": bound.grade if bound else None,
        "formula": bound.formula if bound else None,
        "phase": finding.phase,
        "step": finding.step.index if finding.step else None,
        "detail": redact_text(finding.detail),
        "advice": redact_text(finding.advice) or None,
    }
