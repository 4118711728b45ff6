"""The warm-up/serving diff, per site and slot: WS101 to WS107.

A request escapes when the manager is locked and it is larger than the arena was at the
lock; under `--on-growth grow` it is one all the same. The diff is per site, not per arena:
a site that asked for more than ever before, but found room that a larger neighbour had
made, is a latent escape (WS103).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import takewhile

from wstrace.bounds.bound import Bound
from wstrace.findings.codes import FORETOLD, OUTGROWN, Severity
from wstrace.findings.finding import RESERVE_COMMAND, Finding
from wstrace.runs.run import BoundOf
from wstrace.runs.worker import Worker, WorkerSite
from wstrace.trace.process_file import ProcessTrace
from wstrace.trace.records import Failure, Record, Request, Site, Slot
from wstrace.units import human

RESERVE = f"Apply a reserve: {RESERVE_COMMAND} TRACE -o reserve.yaml."


def find(worker: Worker, bound_of: BoundOf) -> list[Finding]:
    """WS101 to WS107 of one worker."""
    found = list(_refusals(worker))
    for use in worker.sites.values():
        found += _site(worker, use, bound_of)
    return found


def _site(worker: Worker, use: WorkerSite, bound_of: BoundOf) -> list[Finding]:
    worst = use.worst
    if worst is not None and worst.outcome == "escaped":
        return [_escape(worker, use, worst.request, worst.arena, bound_of(use.key))]
    return _not_escaped(worker, use, bound_of(use.key)) if worker.last_lock else []


def _not_escaped(worker: Worker, use: WorkerSite, bound: Bound) -> list[Finding]:
    """WS103 or WS107: it has fitted so far."""
    if use.worst is not None and use.worst.outcome == "latent":
        return [_latent(worker, use, use.worst.request, use.arena, bound)]
    worst = max(use.after or use.requests, key=lambda r: r.bytes, default=None)
    arena = worker.arena(use.slot)
    if worst is None:
        return []
    if bound.grade == "proved" and (bound.bytes or 0) > arena:
        return [_predicted(worker, use, worst, arena, bound)]
    return []


def _escape(
    worker: Worker, use: WorkerSite, worst: Request, arena: int, bound: Bound
) -> Finding:
    code = "WS102" if use.warmup else "WS101"
    if not use.warmup and _never_warmed(worker, use):
        code = "WS104"
    before = human(use.warmup_bytes) if use.warmup else "nothing"
    detail = (
        f"asked {human(worst.bytes)} in a slot locked at {human(arena)}; "
        f"before the lock it asked {before}{_masked(use)}"
    )
    return _finding(code, "error", worker, use, worst, arena, bound, detail, RESERVE)


def _never_warmed(worker: Worker, use: WorkerSite) -> bool:
    """No site asked in this slot before the lock, while another slot was warmed."""
    before = worker.epochs.epochs[use.epoch - 1].before
    warmed = {slot for _, slot in before}
    return use.slot not in warmed and bool(warmed)


def _latent(
    worker: Worker, use: WorkerSite, worst: Request, arena: int, bound: Bound
) -> Finding:
    beyond = bound.bytes is not None and bound.bytes > arena
    need = human(bound.bytes)
    detail = (
        f"asked {human(worst.bytes)} after the lock, {human(use.warmup_bytes)} before; "
        f"it fitted because the slot is {human(arena)}; it can need {need} ({bound.grade})"
    )
    severity: Severity = "error" if beyond else "note"
    advice = RESERVE if beyond else "Nothing: its bound fits the arena."
    return _finding("WS103", severity, worker, use, worst, arena, bound, detail, advice)


def _masked(use: WorkerSite) -> str:
    """What a site asked before its first escape: it fitted, and so passed unseen."""
    passed = takewhile(lambda s: s.outcome != "escaped", use.of_epoch)
    most = max((s.bytes for s in passed if s.outcome == "latent"), default=0)
    return f"; {human(most)} before it escaped fitted and passed unseen" if most else ""


def _predicted(
    worker: Worker, use: WorkerSite, worst: Request, arena: int, bound: Bound
) -> Finding:
    """Nothing has happened yet, but the source shows that it can."""
    detail = (
        f"asked {human(worst.bytes)} so far, but can need {human(bound.bytes)} in a slot "
        f"locked at {human(arena)}"
    )
    return _finding("WS107", "warning", worker, use, worst, arena, bound, detail, RESERVE)


def _finding(
    code: str,
    severity: Severity,
    worker: Worker,
    use: WorkerSite,
    worst: Request,
    arena: int,
    bound: Bound,
    detail: str,
    advice: str,
) -> Finding:
    return Finding(
        code=code,
        severity=severity,
        detail=detail,
        advice=advice,
        file=use.key.file,
        function=use.key.function,
        caller=use.caller,
        slot=use.slot,
        ranks=(worker.ranks,),
        layers=tuple(use.layers),
        warmup_bytes=use.warmup_bytes if use.warmup else None,
        serving_bytes=worst.bytes,
        arena_bytes=arena,
        bound=bound,
        phase=worst.phase,
        step=worst.step,
        statements=tuple(worst.provenance.statements) if worst.provenance else (),
    )


def one_story(findings: Iterable[Finding]) -> list[Finding]:
    """The findings without those that foretell, of a site, what another tells as done."""
    found = list(findings)
    told = {(f.file, f.function) for f in found if f.code in OUTGROWN}
    return [f for f in found if f.code not in FORETOLD or (f.file, f.function) not in told]


def _refusals(worker: Worker) -> Iterator[Finding]:
    for failure in worker.failures:
        if failure.kind == "persistent":
            yield _refusal(
                worker,
                failure,
                "WS105",
                "A reserve does not cover it: make the resource in every slot during warm-up "
                "(start with --on-growth grow to survive meanwhile).",
            )
        elif failure.kind == "layer":
            yield _refusal(
                worker,
                failure,
                "WS106",
                "A reserve does not cover it: lower --max-num-batched-tokens to what warm-up "
                "ran, or warm the layer with the largest batch.",
            )
        elif failure.kind == "arena" and not _told(worker, failure):
            yield _unrecorded(worker, failure)


def _told(worker: Worker, failure: Failure) -> bool:
    """Whether the refused request itself is recorded, and so tells the same."""
    key = worker.site_keys.get(failure.site or 0)
    uses = (use for (site, slot), use in worker.sites.items() if slot == failure.slot)
    known = [use for use in uses if key is None or use.key == key]
    return any(use.outcome == "escaped" for use in known)


def _unrecorded(worker: Worker, failure: Failure) -> Finding:
    """A refusal whose request was lost, such as by an error of the recorder's."""
    asked = human(failure.required) if failure.required else "a request"
    return Finding(
        code="WS102",
        severity="error",
        detail=f"was refused {asked} in a slot locked at {human(failure.arena)}; the request "
        "itself is in no record",
        advice="Record it again, with --on-growth grow: without the request it has no bound.",
        **worker.where(failure.site),
        slot=failure.slot,
        ranks=(worker.ranks,),
        layers=(failure.layer,) if failure.layer else (),
        serving_bytes=failure.required,
        arena_bytes=failure.arena,
        phase=failure.phase,
        step=failure.step,
    )


def outside(processes: Iterable[ProcessTrace]) -> list[Finding]:
    """WS102 of files without a worker record: a refusal counts wherever it was written."""
    found: dict[tuple[str, str, Slot | None], Finding] = {}
    for process in processes:
        if process.worker is not None:
            continue
        sites = {r.id: r for r in process.records if isinstance(r, Site)}
        for record in process.records:
            finding = _outside(process, record, sites)
            if finding is not None:
                found.setdefault((finding.file, finding.function, finding.slot), finding)
    return list(found.values())


def _outside(process: ProcessTrace, record: Record, sites: dict[int, Site]) -> Finding | None:
    if isinstance(record, Request) and record.locked and record.bytes > record.arena:
        told = f"asked {human(record.bytes)}"
    elif isinstance(record, Failure) and record.kind != "memory":
        asked = human(record.required) if record.required else "a request"
        told = f"was refused {asked}"
    else:
        return None
    site = sites.get(record.site or 0)
    name = f"{process.header.role or 'process'} {process.header.pid or ''}".rstrip()
    return Finding(
        code="WS102",
        severity="error",
        detail=f"{told} in a slot locked at {human(record.arena)}, in {name}, "
        "which has no worker record",
        advice="Record it again, with --on-growth grow: without the worker it has no bound.",
        file=site.file if site else "",
        function=site.function if site else "",
        caller=site.caller if site else "",
        slot=record.slot,
        layers=(record.layer,) if record.layer else (),
        serving_bytes=record.bytes if isinstance(record, Request) else record.required,
        arena_bytes=record.arena,
        phase=record.phase,
        step=record.step,
    )


def _refusal(worker: Worker, failure: Failure, code: str, advice: str) -> Finding:
    return Finding(
        code=code,
        severity="error",
        detail=f"{failure.key} was refused" if not failure.survived else f"{failure.key} grew",
        advice=advice,
        **worker.where(failure.site),
        slot=failure.slot,
        ranks=(worker.ranks,),
        layers=(failure.layer,) if failure.layer else (),
        phase=failure.phase,
        step=failure.step,
    )
