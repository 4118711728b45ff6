"""Every place that asks vLLM's workspace manager for memory, found in its syntax trees.

A request is a call of one of `METHODS` on anything, also through a name that holds the method
(`get = manager.get_simultaneous`), through `getattr` or `partial`, and through a function that
only hands its own arguments on (`def get(*specs): return manager.get_simultaneous(*specs)`):
then its callers are requests too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from wstrace.slicer.static import CallPlace, Project
from wstrace.slicer.syntax import FunctionSource, functions

# vLLM 0.13.0 to 0.33.0: WorkspaceManager; the last two since 0.32.0.
METHODS: Final = ("get_simultaneous", "get_persistent", "get_persistent_resource")
_PERSISTENT: Final = frozenset(METHODS[1:])


@dataclass(frozen=True)
class CallSite:
    """One place that asks. `args` are its specs (of a persistent request, all arguments);
    `through` names the function that hands them on, or ''."""

    place: CallPlace
    method: str
    args: tuple[ast.expr, ...]
    enclosing: str
    through: str = ""

    @property
    def file(self) -> str:
        """The file below site-packages."""
        return self.place.source.file

    @property
    def line(self) -> int:
        """The line of the method's name, where a call is spread over several."""
        func = self.place.call.func
        return func.end_lineno or func.lineno

    @property
    def persistent(self) -> bool:
        """A named buffer of its own, made once, and not a part of the arena."""
        return self.method in _PERSISTENT

    @property
    def discarded(self) -> bool:
        """Nobody takes the result: the request is there to make the arena grow."""
        point = self.place.source.places[id(self.place.call)]
        statement = point.block[point.index]
        return isinstance(statement, ast.Expr) and statement.value is self.place.call


def requests(project: Project, modules: Sequence[str] | None = None) -> list[CallSite]:
    """Every request of the package (or of `modules`), in the order of files and lines."""
    named = sorted({m for name in METHODS for m in project.mentioning(name)})
    asking = [m for m in named if not _makes_manager(project, m)]
    wanted = asking if modules is None else [m for m in asking if m in modules]
    found = [r for module in wanted for r in _in_module(project, module)]
    seen = {id(r.place.call) for r in found}
    for request in list(found):
        if _only_hands_on(request):
            found += [r for r in _callers(project, request) if id(r.place.call) not in seen]
    return sorted(found, key=lambda r: (r.file, r.line, r.place.call.col_offset))


def _makes_manager(project: Project, module: str) -> bool:
    """The manager's own module: its methods call each other."""
    return any(project.own_member(cls, METHODS[0]) for cls in project.classes(module))


def _in_module(project: Project, module: str) -> Iterator[CallSite]:
    tree = project.tree(module)
    names = enclosing_names(tree) if tree else {}
    held = _held_by_classes(tree) if tree else {}
    for node, owner in functions(tree) if tree else ():
        source = project.source(module, node, owner)
        if isinstance(node, ast.Lambda):
            continue
        aliases = _aliases(source)
        for call in _own_calls(source):
            asked = _asked(call, aliases, held.get(owner, {}))
            if asked is not None:
                method, args = asked
                where = names[id(node)]
                yield CallSite(CallPlace(source, module, call), method, args, where)


def enclosing_names(tree: ast.Module) -> dict[int, str]:
    """The dotted name of every function, classes and functions around it included, by id."""
    found: dict[int, str] = {}
    todo: list[tuple[ast.AST, str]] = [(tree, "")]
    while todo:
        node, prefix = todo.pop()
        for child in ast.iter_child_nodes(node):
            name = prefix
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{prefix}.{child.name}" if prefix else child.name
                found[id(child)] = name
            todo.append((child, name))
    return found


def _own_calls(source: FunctionSource) -> list[ast.Call]:
    nodes = [n for n in ast.walk(source.node) if isinstance(n, ast.Call)]
    return [n for n in nodes if id(n) in source.places]


def _asked(
    call: ast.Call, aliases: dict[str, str], held: dict[str, str]
) -> tuple[str, tuple[ast.expr, ...]] | None:
    """The method and the arguments, where this call is a request."""
    method = _method_of(call.func, aliases, held)
    if method is not None:
        return method, _given(call.args, call.keywords)
    if _callee(call) == "partial" and call.args:
        method = _method_of(call.args[0], aliases, held)
        if method is not None:
            return method, _given(call.args[1:], call.keywords)
    return None


def _given(args: Sequence[ast.expr], keywords: Sequence[ast.keyword]) -> tuple[ast.expr, ...]:
    return (*args, *(k.value for k in keywords))


def _method_of(node: ast.expr, aliases: dict[str, str], held: dict[str, str]) -> str | None:
    """The manager's method that an expression is, or holds."""
    if isinstance(node, ast.Attribute):
        return node.attr if node.attr in METHODS else held.get(node.attr)
    if isinstance(node, ast.Name):
        return aliases.get(node.id)
    if isinstance(node, ast.Call) and _callee(node) == "getattr" and len(node.args) > 1:
        name = node.args[1]
        text = name.value if isinstance(name, ast.Constant) else None
        return text if isinstance(text, str) and text in METHODS else None
    return None


def _callee(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _aliases(source: FunctionSource) -> dict[str, str]:
    """Local names that hold a method of the manager."""
    found: dict[str, str] = {}
    for node in ast.walk(source.node):
        target, value = _assignment(node)
        if isinstance(target, ast.Name) and value is not None:
            method = _method_of(value, found, {})
            if method is not None:
                found[target.id] = method
    return found


def _held_by_classes(tree: ast.Module) -> dict[str, dict[str, str]]:
    """Class -> attributes of `self` that hold a method of the manager."""
    found: dict[str, dict[str, str]] = {}
    for cls in (n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)):
        for node in ast.walk(cls):
            target, value = _assignment(node)
            if isinstance(target, ast.Attribute) and value is not None:
                method = _method_of(value, {}, {})
                if method is not None:
                    found.setdefault(cls.name, {})[target.attr] = method
    return found


def _assignment(node: ast.AST) -> tuple[ast.expr | None, ast.expr | None]:
    if isinstance(node, ast.Assign):
        return node.targets[0], node.value
    if isinstance(node, ast.AnnAssign | ast.NamedExpr):
        return node.target, node.value
    return None, None


def _only_hands_on(request: CallSite) -> bool:
    """The specs are the function's own `*specs`: it decides nothing about them."""
    declared = request.place.source.node.args
    vararg = declared.vararg.arg if declared.vararg else ""
    stars = [a for a in request.args if isinstance(a, ast.Starred)]
    alone = len(stars) == len(request.args) == 1
    return bool(vararg) and alone and ast.unparse(stars[0].value) == vararg


def _callers(project: Project, request: CallSite) -> Iterator[CallSite]:
    """Calls of a function that hands its specs on."""
    source = request.place.source
    before = [a.arg for a in source.node.args.args if a.arg not in ("self", "cls")]
    for module in project.mentioning(f"{source.name}("):
        tree = project.tree(module)
        names = enclosing_names(tree) if tree else {}
        for place in project.calls_of(source.name, [module]):
            args = _given(place.call.args[len(before) :], place.call.keywords)
            where = names[id(place.source.node)]
            yield CallSite(place, request.method, args, where, request.enclosing)
