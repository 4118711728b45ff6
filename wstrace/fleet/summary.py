"""One run or one log as a small row: what report and gate say of it, and nothing else.

Verdict, findings and sites are those of `AnalysedRun`, their rows those of `wstrace.frames`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from wstrace.errors import WstraceError, one_line
from wstrace.findings.analysed_run import AnalysedRun, Verdict, analyse
from wstrace.findings.coverage import missing_ranks
from wstrace.findings.ends import died_at
from wstrace.fleet.clocks import clock_words, host_starts, started_ns
from wstrace.fleet.source import RowSource
from wstrace.frames.frames import finding_rows, site_rows
from wstrace.gate.limits import largest_arenas, model_of
from wstrace.gate.runs import one_trace
from wstrace.runs.worker import Worker, ranks_named
from wstrace.trace.reader import load_files
from wstrace.trace.records import Limit
from wstrace.triage.log_run import LogRun, log_run
from wstrace.vllm.limits import rows as numbers

FORMAT: Final = 6
"""Goes up when a summary of the same bytes changes."""
Row = dict[str, Any]
RowKind = Literal["run", "log", "unread"]
_OF_THE_HOST: Final = ("num_sms", "cudagraph_mode")
SET_BY: Final = tuple(
    number.name
    for number in numbers()
    if number.recorded
    and (number.flag or number.use == "layout" or number.name in _OF_THE_HOST)
)
"""Names of what a person sets, of what decides shapes and of the device: runs in which they are
equal can be compared."""


class SlotArena(msgspec.Struct, frozen=True):
    """A slot of a run: its arena when warm-up ended, of the rank with the most and of that with
    the least; its most at any time; the largest request."""

    ubatch: int
    lane: int
    largest: int
    smallest: int
    grown: int
    used: int


class RunSummary(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A row. Sizes are bytes; `started` is UTC as ISO 8601, empty where nothing says it.

    `expected` counts the ranks that the config promises. `words` say what is unusual: what was
    chosen, what could not be read, why the run is inconclusive. `sites` and `findings` are
    rows of `wstrace.frames`; a site's also has `refuted`, what a request says against its rule.
    `page` is its report's file below the site, `digest` its source's. `lasting`: the same
    bytes would give it again, which is unknown where a reader died. `unwritten`: why its report
    could not be written, which ends a fleet.
    """

    kind: RowKind
    run: str
    digest: str = ""
    verdict: Verdict = "inconclusive"
    sentence: str = ""
    model: str = ""
    vllm: str = ""
    started: str = ""
    hosts: int = 0
    ranks: int = 0
    expected: int = 0
    died: bool = False
    reserved: bool = False
    largest_rank: str = ""
    setting: dict[str, Limit] = {}
    words: list[str] = []
    arenas: list[SlotArena] = []
    sites: list[Row] = []
    findings: list[Row] = []
    folders: list[str] = []
    page: str = ""
    lasting: bool = True
    unwritten: str = ""

    @property
    def day(self) -> str:
        """`2026-11-28`, empty where nothing says it."""
        return self.started[:10]


encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(RunSummary).decode


def open_source(source: RowSource, *, allow_unlocked: bool = False) -> AnalysedRun:
    """The run or the log, analysed. A file that cannot be read is a doubt of its run.

    Raises WstraceError where nothing can be read.
    """
    if source.log:
        return log_run(Path(source.files[0]))
    traces = []
    for folder, files in source.by_folder.items():
        ends = source.ends_by_folder.get(folder, ())
        traces.append(
            load_files([*map(Path, files)], source.run, Path(folder), [*map(Path, ends)])
        )
    trace = one_trace(traces)
    trace.doubts += source.doubts
    if not trace.processes and (source.files or trace.meta is None):
        raise WstraceError(
            trace.doubts[0] if trace.doubts else "nothing of it could be read",
            "Restore the file from where the trace was made.",
        )
    return analyse(trace, allow_unlocked=allow_unlocked)


def unread(
    source: RowSource, why: str, *, lasting: bool = False, unwritten: str = ""
) -> RunSummary:
    """The row of what could not be read."""
    said = f"could not be read: {_by_name(source, one_line(why))}"
    return RunSummary(
        kind="unread",
        run=source.run,
        digest=source.digest,
        sentence=said,
        words=[*source.words, said],
        folders=source.places,
        lasting=lasting,
        unwritten=unwritten,
    )


def _by_name(source: RowSource, word: str) -> str:
    """A word that calls the source's files by their names alone.

    Where they lie is in `folders`, as of now: a word is kept for the same bytes in any folder,
    and a site that is shown around names nobody's home.
    """
    for folder in sorted(source.by_folder, key=len, reverse=True) if "/" in word else ():
        if folder:
            word = word.replace(f"{one_line(folder)}/", "").replace(f"{folder}/", "")
    return word


def summarise(source: RowSource, run: AnalysedRun, sentence: str) -> RunSummary:
    """The row of a run or a log that was opened; `sentence` is the report's verdict."""
    if isinstance(run, LogRun):
        return _of_log(source, run, sentence)
    starts = host_starts(run.trace.processes)
    began = started_ns(starts, run.trace.meta)
    workers = run.workers
    words = [*source.words, *clock_words(starts, run.trace.meta)]
    words += [*run.inconclusive, *run.notes]
    return RunSummary(
        kind="run",
        run=source.run,
        digest=source.digest,
        verdict=run.verdict(),
        sentence=sentence,
        model=model_of(run),
        vllm=", ".join(sorted({w.header.vllm or "?" for w in workers})),
        started=_time(began),
        hosts=len({p.header.host for p in run.trace.processes}),
        ranks=len(workers),
        expected=len(workers) + len(missing_ranks(workers)),
        died=died_at(run.trace.processes) is not None,
        reserved=any(e.event != "refused" for w in workers for e in w.reserves),
        largest_rank=largest_rank(workers),
        setting=_setting(workers),
        words=list(dict.fromkeys(_by_name(source, word) for word in words)),
        arenas=list(_arenas(run)),
        sites=[
            {**row, "refuted": site.bound.refuted, "rule": site.bound.known_site}
            for row, site in zip(site_rows(run), run.sites, strict=True)
        ],
        findings=[dict(row) for row in finding_rows(run.findings, source.run)],
        folders=source.places,
    )


def _of_log(source: RowSource, run: LogRun, sentence: str) -> RunSummary:
    return RunSummary(
        kind="log",
        run=source.run,
        digest=source.digest,
        verdict=run.verdict(),
        sentence=sentence if run.findings else "nothing about the workspace in this log",
        model=run.model or "",
        vllm=run.vllm_version or "",
        words=[*source.words, *run.notes],
        findings=list(_log_findings(source, run)),
        folders=source.places,
    )


def _log_findings(source: RowSource, run: LogRun) -> Iterator[Row]:
    """Each finding with its own engine: a text may be of several."""
    rows = finding_rows(run.findings, source.run)
    for row, finding in zip(rows, run.findings, strict=True):
        log = finding.log
        yield {**row, **({"model": log.model or "", "vllm": log.version or ""} if log else {})}


def _time(nanoseconds: int) -> str:
    try:
        at = datetime.fromtimestamp(nanoseconds // 10**9, UTC)
    except (OverflowError, ValueError, OSError):
        return ""
    return at.strftime("%Y-%m-%dT%H:%M:%SZ") if nanoseconds > 0 else ""


def _setting(workers: Sequence[Worker]) -> dict[str, Limit]:
    limits = workers[0].limits if workers else {}
    return {name: limits[name] for name in SET_BY if limits.get(name) is not None}


def _arenas(run: AnalysedRun) -> Iterator[SlotArena]:
    """Each slot with what it was locked at, and the most that was asked of it."""
    used: Counter[tuple[int, int]] = Counter()
    for site in run.sites:
        place = (site.slot.ubatch, site.slot.lane)
        used[place] = max(used[place], site.largest)
    for slot, grown in sorted(largest_arenas(run.workers).items()):
        sizes = [worker.arena(slot) for worker in run.workers if slot in worker.slots()]
        most = used[slot.ubatch, slot.lane]
        yield SlotArena(slot.ubatch, slot.lane, max(sizes), min(sizes), grown, most)


def largest_rank(workers: Sequence[Worker]) -> str:
    """The rank with the largest arena, of equal arenas with the largest request; empty where
    ranks do not differ."""
    sizes = {
        id(w): (
            max((w.arena(slot) for slot in w.slots()), default=0),
            max((use.largest for use in w.sites.values()), default=0),
        )
        for w in workers
    }
    if len(set(sizes.values())) < 2:
        return ""
    worker = max(workers, key=lambda w: sizes[id(w)])
    return ranks_named([worker])
