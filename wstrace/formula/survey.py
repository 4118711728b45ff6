"""The slicer over a tree of source: every get_simultaneous call, closed or where it stops."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from wstrace.formula import tree
from wstrace.formula.evaluate import Evaluator
from wstrace.formula.offline import SourceWorld
from wstrace.formula.project import CallPlace, Project
from wstrace.formula.provenance import Leaf
from wstrace.formula.session import Session
from wstrace.formula.slicer import request_bytes
from wstrace.formula.tree import FormulaError, simplified
from wstrace.formula.values import Stop, arms


@dataclass(frozen=True)
class Surveyed:
    """One call site: its formula in bytes over `leaves`, or where the slice stopped."""

    file: str
    function: str
    line: int
    formula: str | None = None
    leaves: tuple[Leaf, ...] = ()
    arms: tuple[str, ...] = ()
    stopped: str | None = None

    @property
    def closed(self) -> bool:
        """Whether every name is a constant or a driver with a role."""
        return self.stopped is None

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
    """One site, followed with nothing but source."""
    session = Session()
    world = SourceWorld(session, project)
    evaluator = Evaluator(session, world)
    world.evaluator = evaluator
    scope = world.scope(place.module, place.source)
    base = Surveyed(place.source.file, place.source.qualname, place.call.lineno)
    try:
        asked = evaluator.packed(place.call.args, scope, whole=True)
        where = scope.where(place.call)
        nodes = [request_bytes(session, arm, where) for arm in arms(asked)]
    except (Stop, FormulaError) as stop:
        return _with(base, stopped=str(stop).splitlines()[0])
    except RecursionError:
        return _with(base, stopped="nested too deeply")
    return closed(session, base, list(dict.fromkeys(nodes)))


def closed(session: Session, base: Surveyed, nodes: list[tree.Node]) -> Surveyed:
    whole = simplified("max", *nodes)
    leaves = tuple(session.leaves[n] for n in sorted(tree.names(whole)))
    open_leaf = next((f"{x.name}: {x.why}" for x in leaves if x.kind == "unbound"), None)
    every = tuple(tree.text(n) for n in nodes) if len(nodes) > 1 else ()
    return _with(base, tree.text(whole), leaves, every, open_leaf)


def _with(
    base: Surveyed,
    formula: str | None = None,
    leaves: tuple[Leaf, ...] = (),
    every: tuple[str, ...] = (),
    stopped: str | None = None,
) -> Surveyed:
    return Surveyed(base.file, base.function, base.line, formula, leaves, every, stopped)
