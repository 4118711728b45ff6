"""What a team allows: `[tool.wstrace]` of pyproject.toml, and checking a run against it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from wstrace.findings.analysed_run import AnalysedRun
from wstrace.gate.place import Place, slot_kind
from wstrace.reserve.schema import GRADES, Grade
from wstrace.runs.run import RunSite
from wstrace.runs.worker import Worker
from wstrace.trace.records import Slot
from wstrace.trace.site_key import SiteKey
from wstrace.units import exact, human


@dataclass(frozen=True)
class Limits:
    """Bytes of an arena by model glob, bytes of a request by site glob, the weakest grade.

    Of several globs that match, the first in the file counts. `ranks` is how many workers
    must have left a trace.
    """

    arena: dict[str, int] = field(default_factory=dict)
    sites: dict[str, int] = field(default_factory=dict)
    require: Grade | None = None
    ranks: int | None = None


@dataclass(frozen=True)
class Violation:
    """A limit that a run does not keep. `rule` is limit/arena, limit/site or limit/grade."""

    rule: str
    detail: str
    key: SiteKey | None = None
    slot: Slot | None = None
    value: int | None = None
    limit: int | None = None

    @property
    def site(self) -> str:
        """`file:function`, empty for an arena's limit."""
        return str(self.key) if self.key else ""

    @property
    def place(self) -> Place:
        """Its identity across machines."""
        return Place(self.rule, self.site, slot_kind(self.slot))


def violations(run: AnalysedRun, limits: Limits) -> list[Violation]:
    """Every limit that the run does not keep."""
    return [
        *_arenas(run, limits.arena),
        *_requests(run, limits.sites),
        *_grades(run, limits.require),
    ]


def model_of(run: AnalysedRun) -> str:
    """The model's base name, as the workers' config has it; empty where unknown."""
    return next((str(m) for v in run.workers if (m := v.limits.get("model"))), "")


def _first(globs: dict[str, int], name: str) -> tuple[str, int] | None:
    return next(((g, size) for g, size in globs.items() if fnmatchcase(name, g)), None)


def _arenas(run: AnalysedRun, globs: dict[str, int]) -> Iterator[Violation]:
    found = _first(globs, model_of(run))
    if found is None:
        return
    glob, limit = found
    for slot, size in sorted(largest_arenas(run.workers).items()):
        if size > limit:
            yield Violation(
                "limit/arena",
                f"the arena is {exact(size)}, {exact(limit)} allowed for {glob!r}",
                slot=slot,
                value=size,
                limit=limit,
            )


def largest_arenas(ranks: list[Worker]) -> dict[Slot, int]:
    """Bytes of each slot's arena: its largest over the run and the ranks."""
    sizes: dict[Slot, int] = {}
    for worker in ranks:
        for slot in worker.slots():
            size = max(worker.arena(slot), worker.arena_now(slot))
            sizes[slot] = max(size, sizes.get(slot, 0))
    return sizes


def _requests(run: AnalysedRun, globs: dict[str, int]) -> Iterator[Violation]:
    for key, slots in _by_site(run):
        found = _first(globs, str(key))
        size = max(s.largest for s in slots)
        if found is not None and size > found[1]:
            glob, limit = found
            detail = f"asked {exact(size)}, {exact(limit)} allowed for {glob!r}"
            yield Violation("limit/site", detail, key, None, size, limit)


def _grades(run: AnalysedRun, require: Grade | None) -> Iterator[Violation]:
    if require is None:
        return
    for key, slots in _by_site(run):
        bound = max((s.bound for s in slots), key=lambda b: GRADES.index(b.grade))
        if GRADES.index(bound.grade) > GRADES.index(require):
            detail = f"its bound ({human(bound.bytes)}) is {bound.grade}, {require} required"
            yield Violation("limit/grade", detail, key, None, bound.bytes)


def _by_site(run: AnalysedRun) -> list[tuple[SiteKey, list[RunSite]]]:
    """Each site with its use in every slot."""
    grouped: dict[SiteKey, list[RunSite]] = {}
    for site in run.sites:
        grouped.setdefault(site.key, []).append(site)
    return list(grouped.items())


def too_few_ranks(run: AnalysedRun, limits: Limits) -> list[str]:
    """A reason to be inconclusive where fewer workers than required left a trace."""
    if limits.ranks is None or len(run.workers) >= limits.ranks:
        return []
    return [f"{len(run.workers)} ranks left a trace, {limits.ranks} required"]


def unmatched(runs: list[AnalysedRun], limits: Limits) -> list[str]:
    """Site globs that no site of any run matches: most likely a typing mistake."""
    names = {str(site.key) for run in runs for site in run.sites}
    return [
        f"the limit for {glob!r} matches no site of this run"
        for glob in limits.sites
        if not any(fnmatchcase(name, glob) for name in names)
    ]
