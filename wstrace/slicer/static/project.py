"""A tree of Python source as a project: modules, what their names mean, class bases."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from wstrace.slicer.syntax import FunctionNode, FunctionSource, called_name, functions, made


@dataclass(frozen=True)
class ModuleRef:
    """A module of the project."""

    name: str


@dataclass(frozen=True)
class ClassRef:
    """A class statement of a module."""

    module: str
    node: ast.ClassDef = field(compare=False)
    name: str = ""


@dataclass(frozen=True)
class FunctionRef:
    """A function statement; `owner` is the class it stands in."""

    module: str
    node: FunctionNode = field(compare=False)
    name: str = ""
    owner: str = ""


@dataclass(frozen=True)
class ExternalRef:
    """A name of something outside the project, dotted."""

    name: str


@dataclass(frozen=True)
class AssignedRef:
    """A module-level name that is assigned once."""

    module: str
    node: ast.expr = field(compare=False)
    name: str = ""


@dataclass(frozen=True)
class CallPlace:
    """A call and the function that makes it."""

    source: FunctionSource
    module: str
    call: ast.Call


Ref = ModuleRef | ClassRef | FunctionRef | ExternalRef | AssignedRef


class Project:
    """`root` is the folder of the top package, such as `.../vllm`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.package = root.name
        self._sources: dict[int, FunctionSource] = {}
        self._bases: dict[ClassRef, list[ClassRef]] = {}
        self._trees: dict[str, ast.Module | None] = {}
        self._calls: dict[str, dict[str, list[CallPlace]]] = {}
        self._mentioning: dict[str, list[str]] = {}
        self._rebound: dict[str, frozenset[str]] = {}
        self._annotations: dict[ClassRef, dict[str, ast.expr]] = {}

    @cached_property
    def files(self) -> dict[str, Path]:
        """Module name -> file."""
        found = {}
        for path in sorted(p for p in self.root.rglob("*.py") if p.is_file()):
            parts = [self.package, *path.relative_to(self.root).with_suffix("").parts]
            if parts[-1] == "__init__":
                parts.pop()
            found[".".join(parts)] = path
        return found

    @cached_property
    def texts(self) -> dict[str, str]:
        """Module name -> source text."""
        return {name: path.read_text("utf-8", "replace") for name, path in self.files.items()}

    def tree(self, module: str) -> ast.Module | None:
        """The module's syntax tree."""
        if module not in self._trees:
            self._trees[module] = _parsed(self.texts[module]) if module in self.files else None
        return self._trees[module]

    def short(self, module: str) -> str:
        """The file as the sites are named: below site-packages."""
        return f"{self.package}/{self.files[module].relative_to(self.root).as_posix()}"

    def source(self, module: str, node: FunctionNode, owner: str = "") -> FunctionSource:
        """The indexed source of a function; one for each node."""
        if id(node) not in self._sources:
            name = "<lambda>" if isinstance(node, ast.Lambda) else node.name
            qualname = f"{owner}.{name}" if owner else name
            source = made(node, str(self.files[module]), qualname, owner)
            source.file = self.short(module)
            self._sources[id(node)] = source
        return self._sources[id(node)]

    def lookup(self, module: str, name: str, seen: frozenset[str] = frozenset()) -> Ref | None:
        """What a global name of a module means, imports followed."""
        tree = self.tree(module)
        if tree is None or f"{module}.{name}" in seen:
            return None
        seen |= {f"{module}.{name}"}
        found = [s for s in _top(tree.body) if _defines(s, name)]
        for statement in reversed(found):
            ref = self._meaning(module, statement, name, seen, len(found))
            if ref is not None:
                return ref
        return ModuleRef(f"{module}.{name}") if f"{module}.{name}" in self.files else None

    def meaning(self, module: str, statement: ast.stmt, name: str) -> Ref | None:
        """What an import inside a function binds `name` to."""
        return self._meaning(module, statement, name, frozenset(), 1)

    def _meaning(
        self, module: str, statement: ast.stmt, name: str, seen: frozenset[str], count: int
    ) -> Ref | None:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            return FunctionRef(module, statement, name)
        if isinstance(statement, ast.ClassDef):
            return ClassRef(module, statement, name)
        if isinstance(statement, ast.ImportFrom):
            return self._imported(module, statement, name, seen)
        if isinstance(statement, ast.Import):
            alias = next(a for a in statement.names if _bound_by(a) == name)
            target = alias.name if alias.asname else alias.name.split(".")[0]
            return ModuleRef(target) if target in self.files else ExternalRef(target)
        once = count == 1 and name not in self.rebound(module)
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value and once:
            return AssignedRef(module, statement.value, name)
        return None

    def rebound(self, module: str) -> frozenset[str]:
        """Globals that a function of the module assigns: what the module gives them first
        says nothing."""
        if module not in self._rebound:
            tree = self.tree(module) if "global " in self.texts.get(module, "") else None
            nodes = [n for n in ast.walk(tree) if isinstance(n, ast.Global)] if tree else []
            self._rebound[module] = frozenset(name for n in nodes for name in n.names)
        return self._rebound[module]

    def _imported(
        self, module: str, statement: ast.ImportFrom, name: str, seen: frozenset[str]
    ) -> Ref | None:
        alias = next(a for a in statement.names if _bound_by(a) == name)
        origin = statement.module or ""
        if statement.level:
            is_package = self.files[module].name == "__init__.py"
            parts = module.split(".")
            keep = len(parts) - statement.level + is_package
            origin = ".".join([*parts[:keep], *([origin] if origin else [])])
        if f"{origin}.{alias.name}" in self.files:
            return ModuleRef(f"{origin}.{alias.name}")
        if origin in self.files:
            return self.lookup(origin, alias.name, seen)
        return ExternalRef(f"{origin}.{alias.name}")

    def bases(self, cls: ClassRef) -> list[ClassRef]:
        """The class and its bases in the project, nearest first."""
        if cls not in self._bases:
            self._bases[cls] = [cls]
            found = [cls]
            for node in cls.node.bases:
                base = self.named(cls.module, node)
                if isinstance(base, ClassRef):
                    found += [b for b in self.bases(base) if b not in found]
            self._bases[cls] = found
        return self._bases[cls]

    def named(self, module: str, node: ast.expr) -> Ref | None:
        """The class or module that an annotation or base expression names."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                return self.named(module, ast.parse(node.value, mode="eval").body)
            except SyntaxError:
                return None
        if isinstance(node, ast.Name):
            return self.lookup(module, node.id)
        if isinstance(node, ast.Attribute):
            owner = self.named(module, node.value)
            if isinstance(owner, ModuleRef):
                return self.lookup(owner.name, node.attr)
            return ExternalRef(f"{owner.name}.{node.attr}") if owner else None
        if isinstance(node, ast.BinOp):
            sides = [self.named(module, side) for side in (node.left, node.right)]
            return next((s for s in sides if s is not None), None)
        if isinstance(node, ast.Subscript):
            return self._generic(module, node)
        return None

    def _generic(self, module: str, node: ast.Subscript) -> Ref | None:
        """Optional[X] and Union[X, ...] are X; Base[X] is Base."""
        name = node.value.id if isinstance(node.value, ast.Name) else ""
        if name not in ("Optional", "Union"):
            return self.named(module, node.value)
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return next((r for n in inner if (r := self.named(module, n)) is not None), None)

    def classes(self, module: str) -> Iterator[ClassRef]:
        """The classes at the top of a module."""
        tree = self.tree(module)
        for statement in _top(tree.body) if tree else []:
            if isinstance(statement, ast.ClassDef):
                yield ClassRef(module, statement, statement.name)

    def subclasses(self, cls: ClassRef) -> list[ClassRef]:
        """Every class below `cls`, at any depth, in the order of modules."""
        found, reached = [cls], {cls}
        for base in found:
            modules = self.mentioning(base.name)
            below = (c for m in modules for c in self.classes(m) if c not in reached)
            new = [c for c in below if base in self.bases(c)]
            reached.update(new)
            found += new
        return sorted(found[1:], key=lambda c: (c.module, c.node.lineno))

    def member(self, cls: ClassRef, name: str) -> FunctionRef | None:
        """A method or property, from the nearest class that has it."""
        found = (self.own_member(base, name) for base in self.bases(cls))
        return next((method for method in found if method is not None), None)

    def own_member(self, cls: ClassRef, name: str) -> FunctionRef | None:
        """A method or property that the class statement itself has."""
        for node in cls.node.body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return FunctionRef(cls.module, node, name, cls.name)
        return None

    def annotation(self, cls: ClassRef, name: str) -> tuple[str, ast.expr] | None:
        """The annotation of a field, in the class body or where a constructor assigns it."""
        for base in self.bases(cls):
            if base not in self._annotations:
                self._annotations[base] = _annotated(base.node)
            if name in self._annotations[base]:
                return base.module, self._annotations[base][name]
        return None

    def calls_of(self, name: str, modules: list[str]) -> Iterator[CallPlace]:
        """Calls of anything called `name`, with the function they stand in."""
        for module in modules:
            yield from self.calls_in(module).get(name, ())

    def calls_in(self, module: str) -> dict[str, list[CallPlace]]:
        """Every call of a module by the name that it calls, in the order of `functions`."""
        if module not in self._calls:
            tree = self.tree(module)
            found: dict[str, list[CallPlace]] = {}
            for node, owner in functions(tree) if tree else ():
                if isinstance(node, ast.Lambda):
                    continue
                source = self.source(module, node, owner)
                for call in ast.walk(node):
                    if isinstance(call, ast.Call) and id(call) in source.places:
                        place = CallPlace(source, module, call)
                        found.setdefault(called_name(call), []).append(place)
            self._calls[module] = found
        return self._calls[module]

    def mentioning(self, text: str) -> list[str]:
        """Modules whose source has `text`."""
        if text not in self._mentioning:
            found = [name for name, source in self.texts.items() if text in source]
            self._mentioning[text] = found
        return self._mentioning[text]


def _parsed(text: str) -> ast.Module | None:
    """None: not today's syntax. The tree is this project's own: a file may be another one in
    the next project of a process."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _annotated(cls: ast.ClassDef) -> dict[str, ast.expr]:
    """The first annotation of each name in a class, its own or an attribute's."""
    found: dict[str, ast.expr] = {}
    for node in ast.walk(cls):
        target = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(target, ast.Name):
            name = target.id
        elif isinstance(target, ast.Attribute):
            name = target.attr
        else:
            continue
        assert isinstance(node, ast.AnnAssign)
        found.setdefault(name, node.annotation)
    return found


def _bound_by(alias: ast.alias) -> str:
    return alias.asname or alias.name.split(".")[0]


def _top(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        if isinstance(statement, ast.If | ast.Try):
            yield from _top(statement.body)
            yield from _top(statement.orelse)
            for handler in getattr(statement, "handlers", []):
                yield from _top(handler.body)


def _defines(statement: ast.stmt, name: str) -> bool:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        return statement.name == name
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return any(_bound_by(a) == name for a in statement.names)
    if isinstance(statement, ast.Assign):
        return any(isinstance(t, ast.Name) and t.id == name for t in statement.targets)
    target = statement.target if isinstance(statement, ast.AnnAssign) else None
    return isinstance(target, ast.Name) and target.id == name
