"""Which reservations may be meant for a serving request.

They belong together when one class (or its base) makes both, when an attention backend
names the two classes as its impl and its metadata builder, when one module holds both, or
when a function that reserves in a profile run is on the way to the request.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from wstrace.audit.call_sites import CallSite
from wstrace.audit.reaching import Phase, WayIn
from wstrace.slicer.static import ClassRef, Project

# vLLM 0.13.0 to 0.33.0: AttentionBackend's static methods.
_PARTS = ("get_impl_cls", "get_builder_cls")


@dataclass(frozen=True)
class Placed:
    """A request with the ways to it."""

    site: CallSite
    ways: tuple[WayIn, ...]

    @cached_property
    def functions(self) -> frozenset[tuple[str, str]]:
        """Every function on a way to it: its module and its name."""
        pairs = (zip(way.modules, way.functions, strict=False) for way in self.ways)
        return frozenset(pair for each in pairs for pair in each)


class Relations:
    """Questions about the classes of one project, remembered."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self._imports: dict[str, frozenset[str]] = {}
        self._partners: dict[ClassRef, list[ClassRef]] = {}

    def owner(self, site: CallSite) -> ClassRef | None:
        """The class that makes a request."""
        name = site.place.source.in_class
        ref = self.project.lookup(site.place.module, name) if name else None
        return ref if isinstance(ref, ClassRef) else None

    def candidates(
        self, serving: Placed, reservations: Sequence[Placed]
    ) -> list[tuple[int, Placed]]:
        """The reservations that belong to a serving request with their closeness, the closest
        first."""
        ranked = [(self.closeness(serving, r), n, r) for n, r in enumerate(reservations)]
        near = [found for found in ranked if found[0] < _FAR]
        return [(rank, r) for rank, _, r in sorted(near, key=lambda found: found[:2])]

    def closeness(self, serving: Placed, reserved: Placed) -> int:
        """How closely two requests belong together: 0 to `LOOSE` for one class, module or way,
        from `LOOSE` on for modules that only import one another."""
        one, other = serving.site, reserved.site
        if one.place.source is other.place.source:
            return 0
        if _profiled_on_the_way(serving, reserved):
            return 1
        a, b = self.owner(one), self.owner(other)
        if a is not None and b is not None and self.together(a, b):
            return 2
        if one.place.module == other.place.module and self.in_one_use(a, b):
            return 3
        if a is not None and self.held_in_module(a, other.place.module):
            return LOOSE
        return LOOSE + 1 if self.linked(serving, reserved) else _FAR

    def together(self, a: ClassRef, b: ClassRef) -> bool:
        """One is the other's base, or a backend names the one (or its base) with the other."""
        if a in self.project.bases(b) or b in self.project.bases(a):
            return True
        return any(b in self.project.bases(part) for part in self.partners(a))

    def in_one_use(self, a: ClassRef | None, b: ClassRef | None) -> bool:
        """Whether two classes of one module, neither the other's base, are used together: the
        one makes the other, or a third makes both."""
        if a is None or b is None or a == b:
            return True
        named = {a.name: _names(b.node), b.name: _names(a.node)}
        if any(name in names for name, names in named.items()):
            return True
        others = (_names(c.node) for c in self.project.classes(a.module) if c not in (a, b))
        return any({a.name, b.name} <= names for names in others)

    def partners(self, cls: ClassRef) -> list[ClassRef]:
        """Impls and builders that a backend names together with this class."""
        if cls not in self._partners:
            modules = self.project.mentioning(cls.name)
            backends = [b for m in modules for b in self.project.classes(m)]
            named = [parts for b in backends if cls in (parts := self.parts(b))]
            self._partners[cls] = [p for parts in named for p in parts if p != cls]
        return self._partners[cls]

    def parts(self, backend: ClassRef) -> list[ClassRef]:
        """The impl and the builder of a backend, inherited ones too."""
        found = []
        for name in _PARTS:
            method = self.project.member(backend, name)
            for node in ast.walk(method.node) if method else ():
                if method is not None and isinstance(node, ast.Return) and node.value:
                    ref = self.project.named(method.module, node.value)
                    if isinstance(ref, ClassRef):
                        found.append(ref)
        return found

    def held_in_module(self, cls: ClassRef, module: str) -> bool:
        """Whether a base of the class stands in a module."""
        return any(b.module == module for b in self.project.bases(cls))

    def linked(self, serving: Placed, reserved: Placed) -> bool:
        """Whether the module of one takes something from the other's, callers included."""
        ours = {serving.site.place.module} | {m for w in serving.ways for m in w.modules}
        theirs = reserved.site.place.module
        return any(self.imports(theirs, m) or self.imports(m, theirs) for m in ours)

    def imports(self, module: str, other: str) -> bool:
        """Whether a module imports names of another."""
        return other in self.imported(module)

    def imported(self, module: str) -> frozenset[str]:
        """The modules whose names a module imports."""
        if module not in self._imports:
            tree = self.project.tree(module)
            nodes = ast.walk(tree) if tree else ()
            found = [n for n in nodes if isinstance(n, ast.ImportFrom)]
            self._imports[module] = frozenset(
                name for node in found for name in self.named_by(module, node)
            )
        return self._imports[module]

    def named_by(self, module: str, node: ast.ImportFrom) -> Iterator[str]:
        """The module of an import, and modules among what it takes from a package."""
        origin = node.module or ""
        if node.level:
            package = self.project.files[module].name == "__init__.py"
            parts = module.split(".")
            parts = parts[: len(parts) - node.level + package]
            origin = ".".join([*parts, *([origin] if origin else [])])
        yield origin
        taken = (f"{origin}.{alias.name}" for alias in node.names)
        yield from (name for name in taken if name in self.project.files)

    def backends(self, cls: ClassRef) -> list[ClassRef]:
        """The attention backends that name a class as a part of theirs."""
        modules = self.project.mentioning(cls.name)
        every = (b for m in modules for b in self.project.classes(m))
        return [b for b in every if cls in self.parts(b)]


LOOSE = 4
"""From here on only a request that is one of the reserved specs counts as reserved."""
_FAR = 9


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _profiled_on_the_way(serving: Placed, reserved: Placed) -> bool:
    """The function whose profile branch reserves is also on a way to the request."""
    ends = {
        (w.modules[-1], w.functions[-1])
        for w in reserved.ways
        if w.phase is Phase.PROFILE and w.functions
    }
    return bool(ends & serving.functions)
