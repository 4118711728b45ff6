"""The slicer over a tree of source: every get_simultaneous call, closed or where it stops."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from wstrace.expr import tree
from wstrace.expr.tree import FormulaError, simplified
from wstrace.slicer.evaluator import Evaluator
from wstrace.slicer.ledger import Ledger, SlicedLeaf
from wstrace.slicer.static.fields import abstract
from wstrace.slicer.static.project import CallPlace, ClassRef, Project
from wstrace.slicer.static.source_world import SourceWorld
from wstrace.slicer.values import Stop


@dataclass(frozen=True)
class Surveyed:
    """One call site: its formula in bytes over `leaves`, or where the slice stopped."""

    file: str
    function: str
    line: int
    formula: str | None = None
    leaves: tuple[SlicedLeaf, ...] = ()
    arms: tuple[str, ...] = ()
    stopped: str | None = None
    classes: tuple[Surveyed, ...] = ()
    of_class: str = ""

    @property
    def assumed(self) -> tuple[str, ...]:
        """Leaves that are constant by assumption only, to be compared across requests."""
        return tuple(x.name for x in self.leaves if x.kind == "constant" and x.why)

    @property
    def closed(self) -> bool:
        """Whether every name is a constant or a driver with a role."""
        return self.stopped is None

    @property
    def share(self) -> float:
        """1 where there is a formula, closed or not; of an abstract class's site, the share
        of the classes for which there is one."""
        if not self.classes:
            return float(self.formula is not None)
        return sum(c.share for c in self.classes) / len(self.classes)

    @property
    def closed_share(self) -> float:
        """As `share`, for closed formulas."""
        if not self.classes:
            return float(self.closed)
        return sum(c.closed for c in self.classes) / len(self.classes)

    @property
    def drivers(self) -> tuple[str, ...]:
        """Roles of the drivers, sorted."""
        return tuple(sorted({leaf.role for leaf in self.leaves if leaf.role}))


def survey(root: Path) -> Iterator[Surveyed]:
    """Every call in the package at `root`, in the order of files and lines."""
    project = Project(root)
    for place in sorted(sites(project), key=lambda p: (p.source.file, p.call.lineno)):
        yield sliced(project, place)


def sites(project: Project) -> list[CallPlace]:
    """Attribute calls of get_simultaneous, outside the manager's own module."""
    modules = [
        m for m in project.mentioning("get_simultaneous(") if "worker.workspace" not in m
    ]
    calls = project.calls_of("get_simultaneous", modules)
    return [p for p in calls if isinstance(p.call.func, ast.Attribute)]


def sliced(project: Project, place: CallPlace) -> Surveyed:
    """One site, followed with nothing but source.

    Where it calls a method that is abstract, once for each class that a worker may hold.
    """
    found, left_open = _sliced(project, place, {})
    for cls, method in left_open.items():
        below = [c for c in project.subclasses(cls) if _implements(project, c, method)]
        each = [_with_class(project, place, cls, c) for c in below]
        return _of_classes(found, each) if each else found
    return found


def _implements(project: Project, cls: ClassRef, method: str) -> bool:
    member = project.member(cls, method)
    return member is not None and not abstract(member)


def _with_class(
    project: Project, place: CallPlace, cls: ClassRef, chosen: ClassRef
) -> Surveyed:
    found, _ = _sliced(project, place, {cls: chosen})
    return replace(found, of_class=chosen.name)


def _of_classes(base: Surveyed, each: list[Surveyed]) -> Surveyed:
    """The site of an abstract class: closed where it is closed for every class."""
    first = next((s for s in each if not s.closed), None)
    if first is None:
        return replace(base, classes=tuple(each), stopped=None)
    stopped = f"{first.of_class}: {first.stopped}"
    return replace(base, classes=tuple(each), stopped=stopped)


def _sliced(
    project: Project, place: CallPlace, concrete: Mapping[ClassRef, ClassRef]
) -> tuple[Surveyed, dict[ClassRef, str]]:
    """The site, and the abstract methods that were met."""
    ledger = Ledger()
    world = SourceWorld(ledger, project, concrete=concrete)
    evaluator = Evaluator(ledger, world)
    world.attach(evaluator)
    scope = world.scope(place.module, place.source)
    base = Surveyed(place.source.file, place.source.qualname, place.call.lineno)
    try:
        nodes = evaluator.request(place.call, scope)
    except (Stop, FormulaError) as stop:
        return _with(base, stopped=str(stop).splitlines()[0]), world.abstract
    except RecursionError:
        return _with(base, stopped="nested too deeply"), world.abstract
    return closed(ledger, base, nodes), world.abstract


def closed(ledger: Ledger, base: Surveyed, nodes: list[tree.Node]) -> Surveyed:
    whole = simplified("max", *nodes)
    leaves = tuple(ledger.leaves[n] for n in sorted(tree.names(whole)))
    open_leaf = next((f"{x.name}: {x.why}" for x in leaves if x.kind == "unbound"), None)
    every = tuple(tree.text(n) for n in nodes) if len(nodes) > 1 else ()
    return _with(base, tree.text(whole), leaves, every, open_leaf)


def _with(
    base: Surveyed,
    formula: str | None = None,
    leaves: tuple[SlicedLeaf, ...] = (),
    every: tuple[str, ...] = (),
    stopped: str | None = None,
) -> Surveyed:
    return replace(base, formula=formula, leaves=leaves, arms=every, stopped=stopped)
