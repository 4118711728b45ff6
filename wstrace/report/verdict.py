"""The verdict of a run in at most 12 lines, and the next command to type."""

from __future__ import annotations

import shlex
from pathlib import Path

from wstrace.errors import one_line, with_stop
from wstrace.findings.analysed_run import AnalysedRun
from wstrace.findings.ends import died_at, failed, start_died
from wstrace.findings.finding import Finding
from wstrace.findings.inconclusive import (
    UNASKED,
    different,
    lost_engines,
    served_unlocked,
    size_unknown,
)
from wstrace.report.finding_text import layers_text, why
from wstrace.report.safe import clean
from wstrace.trace.records import Slot
from wstrace.units import exact, human, plural
from wstrace.vllm.command_line import serves

AGAIN = "wstrace run --on-growth grow -- YOUR COMMAND"
FIX = "wstrace fix -- YOUR COMMAND"
KEEPS = {AGAIN: "--reserve", FIX: "--merge"}
"""The option of each with which the sites of a reserve that the run had are kept."""
MAX_LINES = 12
WIDTH = 100


def sentence(run: AnalysedRun) -> str:
    """The verdict in one sentence; vLLM's own caller string first, people search for it."""
    if run.worst is not None:
        joint = ": " if run.worst.row.own_subject else " "
        return f"'{clean(run.worst.named or 'a request')}'{joint}{with_code(run.worst)}"
    if run.inconclusive:
        return with_stop(f"Inconclusive: {run.inconclusive[0]}")
    coming = next((f for f in run.findings if f.row.foretold and f.severity == "warning"), None)
    if coming is not None:
        need = human(coming.bound.bytes) if coming.bound else "more"
        sizes = f"needs {need}, has {human(coming.arena_bytes)}"
        return f"No escape yet, but '{clean(coming.caller)}' will escape ({sizes})."
    sites = plural(len(run.sites), "site")
    return f"Clean: {sites}, no request above what warm-up had made room for."


def with_code(worst: Finding) -> str:
    """What the sentence says of its site."""
    return f"{worst.detail} ({worst.code})."


def verdict_lines(run: AnalysedRun, folder: Path) -> list[str]:
    """At most 12 lines for a terminal: the verdict, the worst findings, what to type next."""
    errors = [f for f in run.findings if f.severity == "error"]
    lines = ["", f"wstrace: {sentence(run)}"]
    if errors:
        lines += _explain(errors[0])
        lines += [_row(f) for f in errors[1:3]]
        if len(errors) > 3:
            lines.append(f"  and {len(errors) - 3} more.")
    elif run.inconclusive[1:]:
        lines += [f"  also: {reason}" for reason in run.inconclusive[1:3]]
    if beyond := run.rests_on.beyond:
        lines.append(with_stop(f"  {beyond[0].upper()}{beyond[1:]}"))
    commands = _next(run, folder)  # whole: cut short they would be other commands
    return [*(_fitted(line) for line in lines[: MAX_LINES - len(commands)]), *commands]


def _fitted(line: str) -> str:
    """At most two lines of a terminal, cut between two words."""
    if len(line) <= WIDTH * 2:
        return line
    return f"{line[: WIDTH * 2 - 3].rpartition(' ')[0]} ..."


def _explain(finding: Finding) -> list[str]:
    bound = finding.bound
    lines = []
    if layers := layers_text(finding):
        lines.append(f"  layer: {layers}")
    if bound is not None and bound.drivers:
        lines.append(f"  why:   {why(bound)}")
    if bound is not None and bound.bytes is not None:
        lines.append(
            f"  bound: {exact(bound.bytes)}, {bound.grade}: {bound.formula or bound.why}"
        )
    return lines


def _row(finding: Finding) -> str:
    size = human(finding.serving_bytes)
    return f"  {finding.code} {clean(finding.named)}: {size}, {finding.title}"


def _next(run: AnalysedRun, folder: Path) -> list[str]:
    """The trace, and the commands that help in this state."""
    commands = next_commands(run, run.trace.as_typed(folder))
    heads = ["next:  ", *["       "] * len(commands)]
    return [f"trace: {folder}", *map(str.__add__, heads, commands)]


def next_commands(run: AnalysedRun, trace: str) -> list[str]:
    """What to type next, in order; `trace` is how a command names this run.

    A reserve only where it helps: where no reserve covers a finding its page says what does,
    and where the run says nothing of the workspace it has to be made again. With grow, so that
    a server that dies of one site does not hide the others; of a server `fix` does that and
    all that follows. What stands in brackets behind three blanks is no part of the command.
    """
    again = _again(run)
    reserve = f"wstrace reserve {trace} -o reserve.yaml"
    code = failed(run.trace)
    told = to_mend(run)
    if any(start_died(w.process) for w in run.workers) and not told:
        return [f"{again}   (once what stopped the start is mended)"]
    if not run.workers:
        told_first = f"{again}   (once what ended it with exit code {code} is mended)"
        return ["wstrace doctor"] if code is None else [told_first]
    if (gone := _reserve_gone(run)) is not None:
        return [gone, f"{again}   (with growth it lives on)"]
    if told and _hides_sites(run):
        rest = "finds the rest, tries the reserve" if _serves(run) else "finds the rest"
        return [f"{again}   ({rest})", f"{reserve}   (of what was seen)"]
    beyond = [f for f in told if f.severity == "error" and not f.reservable]
    lines = [f"wstrace explain {f.code}   (a reserve does not help)" for f in beyond[:1]]
    let_go = any(map(served_unlocked, run.workers)) and not _reserved(run)
    if any(f.reservable for f in told) or let_go:
        lines += [reserve, "wstrace run --reserve reserve.yaml -- YOUR COMMAND"]
    return lines or _inconclusive_next(run, trace, again)


def _again(run: AnalysedRun) -> str:
    """`fix` of a server, else grow, with the reserve that the run had: a new one keeps it."""
    meta = run.trace.meta
    again = FIX if _serves(run) else AGAIN
    had = meta.reserve if meta is not None and _reserved(run) else None
    keeps = f"{KEEPS[again]} {one_line(shlex.quote(had))} -- YOUR" if had else "-- YOUR"
    return again.replace("-- YOUR", keeps)


def _serves(run: AnalysedRun) -> bool:
    """Whether the command is a server's, as run.json has it."""
    return run.trace.meta is not None and serves(run.trace.meta.words)


def _reserved(run: AnalysedRun) -> dict[Slot, int]:
    """Bytes by slot that a reserve of this run saw to; none where a rank refused it."""
    events = [event for worker in run.workers for event in worker.reserves]
    sizes: dict[Slot, int] = {}
    for event in events if all(e.event != "refused" for e in events) else ():
        for slot, size in zip(event.slots, event.sizes, strict=False):
            sizes[slot] = max(size, sizes.get(slot, 0))
    return sizes


def _reserve_gone(run: AnalysedRun) -> str | None:
    """Why another reserve does not help: the applied one covers the request, and the arena was
    locked again without it."""
    had = _reserved(run)
    for finding in (f for f in to_mend(run) if f.reservable):
        size = had.get(finding.slot or Slot(), 0)
        if (finding.serving_bytes or 0) <= size and (finding.arena_bytes or 0) < size:
            at = human(finding.arena_bytes)
            told = f"the reserve made {human(size)}, and the slot was locked anew at {at}"
            return f"wstrace explain {finding.code}   ({told})"
    return None


def _hides_sites(run: AnalysedRun) -> bool:
    """Whether sites may stand behind this run's end: with grow only where it found nothing."""
    if any(worker.header.on_growth == "grow" for worker in run.workers):
        return bool(run.rests_on.doubts) and not run.escapes
    return died_at(run.trace.processes) is not None or bool(run.rests_on.doubts)


def to_mend(run: AnalysedRun) -> list[Finding]:
    """The findings for which something has to be done: errors, what will be one, and growth
    that no lock stops."""
    return [f for f in run.findings if f.severity == "error" or f.row.mend]


def _inconclusive_next(run: AnalysedRun, trace: str, again: str) -> list[str]:
    """What helps where nothing was found."""
    absent = bool(lost_engines(run.workers, run.trace))
    absent = absent or any(map(size_unknown, run.workers))
    if absent or any(f.row.lacks == "rank" for f in run.findings):
        return ["wstrace doctor"]
    if different(run.workers):
        return [f"{again}   (one launch, with a run id of its own)"]
    if any(event.event == "refused" for w in run.workers for event in w.reserves):
        return [f"{again}   (without the reserve, which is for another engine)"]
    if any(map(served_unlocked, run.workers)):
        return [f"wstrace gate {trace} --allow-unlocked   (an unlocked arena refuses nothing)"]
    if any(f.row.lacks == "start" for f in run.findings):
        return [f"{again}   (this start was not seen to its end)"]
    if UNASKED in run.inconclusive:
        asked = "it asks" if _serves(run) else "and meanwhile wstrace exercise --url URL"
        return [f"{again}   ({asked})"]
    if run.rests_on.doubts or died_at(run.trace.processes) is not None:
        return [f"{again}   (this trace does not show how the run went on)"]
    if any(process.unknown for process in run.trace.processes):
        return [f"{again}   (by this wstrace: it does not know all that the trace holds)"]
    if run.inconclusive and all(w.served and not w.locks and w.sites for w in run.workers):
        return [f"wstrace gate {trace} --allow-unlocked   (the reserve covers what can grow)"]
    return [f"wstrace report {trace}"]
