"""The audit of one release: every request, its role, its match, its formula and drivers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wstrace.audit.call_sites import METHODS, CallSite, requests
from wstrace.audit.matching import Match, Matched, Matcher, at_of, warms_steps
from wstrace.audit.reaching import Phase, Phases, WayIn
from wstrace.audit.related import Placed, Relations
from wstrace.audit.request_roles import SERVING, Role, role_of
from wstrace.audit.unreached import unreached
from wstrace.expr import tree
from wstrace.slicer.static import AskedSpecs, Project
from wstrace.trace.site_key import SiteKey


@dataclass(frozen=True)
class AuditedSite:
    """One request of a release.

    `formula` gives its bytes over names that `drivers` and the config bind; None where the
    source could not be followed, then `stopped` says where. `matched_by` are the conditions and
    reservations that the verdict rests on, as FILE:LINE.
    """

    file: str
    line: int
    enclosing: str
    method: str
    role: Role
    match: Match
    reason: str
    matched_by: tuple[str, ...] = ()
    condition: str = ""
    example: str = ""
    formula: str | None = None
    stopped: str | None = None
    drivers: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()
    unreached: tuple[str, ...] = ()
    through: str = ""

    @property
    def at(self) -> str:
        """FILE:LINE."""
        return f"{self.file}:{self.line}"

    @property
    def name(self) -> str:
        """FILE:FUNCTION, the same in releases where the line has moved."""
        return str(SiteKey(self.file, self.enclosing))


@dataclass(frozen=True)
class Audit:
    """Every request of one release, in the order of files and lines. `unread` are files that
    name the manager's methods, or were asked for, and are not Python of today."""

    version: str
    sites: tuple[AuditedSite, ...]
    unread: tuple[str, ...] = ()

    @property
    def serving(self) -> tuple[AuditedSite, ...]:
        """Requests that a step makes."""
        return tuple(s for s in self.sites if s.role in SERVING)


@dataclass(frozen=True)
class Reading:
    """A release as it was read: every request that was looked at, its ways and its role."""

    version: str
    placed: tuple[Placed, ...]
    roles: dict[int, Role]
    matcher: Matcher
    modules: frozenset[str] | None = None

    def role(self, placed: Placed) -> Role:
        """The role of a request."""
        return self.roles[id(placed)]

    def audit(self) -> Audit:
        """Every request with its match."""
        shown = (
            p
            for p in self.placed
            if self.modules is None or p.site.place.module in self.modules
        )
        sites = tuple(_audited(p, self.role(p), self.matcher) for p in shown)
        return Audit(self.version, sites, unread(self.matcher.project, self.modules))


def unread(project: Project, modules: frozenset[str] | None = None) -> tuple[str, ...]:
    """Files that name the manager's methods, or are looked at (`modules`), and cannot be
    parsed: their requests are not known."""
    asking = {m for name in METHODS for m in project.mentioning(name)}
    named = sorted(asking | (modules or frozenset()))
    return tuple(project.short(m) for m in named if project.tree(m) is None)


def reading(root: Path, version: str, files: Sequence[Path] | None = None) -> Reading:
    """Read the vllm package at `root`; `files` keeps it to requests in some of its files, and
    to the reservations of modules that these name, or that name them."""
    project = Project(root)
    phases = Phases(project)
    modules = None if files is None else _modules(project, files)
    near = None if modules is None else _near(project, modules)
    sites = requests(project, near)
    placed = tuple(Placed(site, tuple(phases.ways(site))) for site in sites)
    roles = {id(p): role_of(p.site, p.ways) for p in placed}
    reservations = [p for p in placed if roles[id(p)] == "reservation" and _made_in_time(p)]
    matcher = Matcher(
        project, Relations(project), reservations, version or None, warms_steps(project), phases
    )
    return Reading(version, placed, roles, matcher, modules)


def _made_in_time(placed: Placed) -> bool:
    """Whether a way to it runs before a request is served: one of a real step is too late, and
    nobody knows when a function is called that is handed on."""
    return any(way.phase is not Phase.STEP and not way.late for way in placed.ways)


def audit(root: Path, version: str, files: Sequence[Path] | None = None) -> Audit:
    """Audit the vllm package at `root`, or some files of it."""
    return reading(root, version, files).audit()


def _modules(project: Project, files: Sequence[Path]) -> frozenset[str]:
    """The modules of these files of the package."""
    wanted = {file.resolve() for file in files}
    return frozenset(name for name, file in project.files.items() if file.resolve() in wanted)


def _near(project: Project, modules: frozenset[str]) -> list[str]:
    """These modules, those that they name and those that name them."""
    texts = project.texts
    return [
        name
        for name, text in texts.items()
        if name in modules or any(m in text or name in texts[m] for m in modules)
    ]


def _audited(placed: Placed, role: Role, matcher: Matcher) -> AuditedSite:
    site = placed.site
    serves = role in SERVING
    found = matcher.verdict(placed) if serves else _no_match(role, placed)
    specs = matcher.specs(site)
    formula, drivers = formula_of(specs)
    reserved = [r for r in matcher.reservations if at_of(r.site) in found.by]
    beyond = unreached(placed, specs, reserved, matcher.project) if serves else ()
    return AuditedSite(
        file=site.file,
        line=site.line,
        enclosing=site.enclosing,
        method=site.method,
        role=role,
        match=found.match,
        reason=found.reason,
        matched_by=found.by,
        condition=found.condition,
        example=found.example,
        formula=formula,
        stopped=specs.stopped,
        drivers=drivers,
        phases=tuple(sorted({way.phase.value for way in placed.ways})),
        unreached=beyond,
        through=site.through,
    )


def formula_of(specs: AskedSpecs) -> tuple[str | None, tuple[str, ...]]:
    """The formula of a request that is understood as a whole, and its drivers."""
    size = None if specs.stopped else specs.bytes()
    drivers = sorted({leaf.role for leaf in specs.leaves.values() if leaf.role})
    return (None if size is None else tree.text(size)), tuple(drivers)


def _no_match(role: Role, placed: Placed) -> Matched:
    if role == "reservation":
        return Matched("na", _why_reservation(placed.site, placed.ways))
    return Matched("na", "only warm-up passes here")


def _why_reservation(site: CallSite, ways: Sequence[WayIn]) -> str:
    if not ways:
        return "a reservation that nothing in this release makes"
    phases = " and ".join(sorted({way.phase.value for way in ways}))
    taken = "its result is not taken, " if site.discarded else ""
    return f"{taken}made in the {phases}"
