"""An audit joined with a real run: which requests it reached before the lock, and which not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from wstrace.audit.deployment import Deployment
from wstrace.audit.loading import Loaded, Loading
from wstrace.audit.upgrade import UNRESERVED
from wstrace.audit.whole import AuditedSite, Reading
from wstrace.runs.run import Run, RunSite

RunState = Literal["too small", "at risk", "safe", "not reached", "not loaded"]
STATES: Final[tuple[RunState, ...]] = (
    "too small",
    "at risk",
    "safe",
    "not reached",
    "not loaded",
)


@dataclass(frozen=True)
class Joined:
    """One function's requests in a run. `largest` is the most it asked, in bytes, 0 where the
    run never reached it."""

    site: AuditedSite
    state: RunState
    why: str
    largest: int = 0


def deployment_of(run: Run) -> Deployment:
    """The deployment that a run's first worker recorded."""
    limits = run.workers[0].limits if run.workers else {}
    numbers = {name: int(v) for name, v in limits.items() if isinstance(v, int)}
    words = {name: v for name, v in limits.items() if isinstance(v, str)}
    return Deployment(numbers, words, ())


def joined(read: Reading, run: Run) -> list[Joined]:
    """Each serving function of the audit with what the run saw of it, the worst state first."""
    seen = {(s.key.file, s.key.function): s for s in run.sites}
    loading = Loading(read.matcher.project, deployment_of(run))
    loads = {(p.site.file, p.site.enclosing): loading.of(p) for p in read.placed}
    found: dict[str, Joined] = {}
    for site in read.audit().serving:
        key = (site.file, site.enclosing)
        one = _join(site, _called(seen, key), loads[key])
        other = found.get(site.name)
        if other is None or STATES.index(one.state) < STATES.index(other.state):
            found[site.name] = one
    return sorted(found.values(), key=lambda j: (STATES.index(j.state), j.site.at))


def _called(seen: dict[tuple[str, str], RunSite], key: tuple[str, str]) -> Sequence[RunSite]:
    """The run's site of a function; one trace may name a function by its plain name."""
    file, function = key
    names = (function, function.rpartition(".")[2])
    return [s for (f, n), s in seen.items() if f == file and n in names]


def _join(site: AuditedSite, sites: Sequence[RunSite], loaded: Loaded) -> Joined:
    if sites:
        one = sites[0]
        if one.outcome in ("escaped", "outgrew"):
            return Joined(site, "too small", "it asked for more than the arena", one.largest)
        if one.outcome == "latent":
            why = "a larger neighbour made the room: without it, it escapes"
            return Joined(site, "at risk", why, one.largest)
        return Joined(site, "safe", "warm-up asked for as much", one.largest)
    if loaded.loads == "no":
        return Joined(site, "not loaded", loaded.why)
    if site.match in UNRESERVED and loaded.loads == "yes":
        return Joined(site, "at risk", f"never reached before the lock: {site.reason}")
    why = "reserved" if site.match not in UNRESERVED else loaded.why
    return Joined(site, "not reached", why)
