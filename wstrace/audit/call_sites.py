"""Every place that asks vLLM's workspace manager for memory, found in its syntax trees.

A request is a call of one of `METHODS` on anything, also through a name that holds the method
(`get = manager.get_simultaneous`), through `getattr` or `partial`, and through a function that
only hands its own arguments on (`def get(*specs): return manager.get_simultaneous(*specs)`):
then its callers are requests too.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from wstrace.slicer.static import CallPlace, Project
from wstrace.slicer.syntax import FunctionSource, called_name, functions, parameters

# vLLM 0.13.0 to 0.33.0: WorkspaceManager; the last two since 0.32.0.
METHODS: Final = ("get_simultaneous", "get_persistent", "get_persistent_resource")
Held = tuple[str, tuple[ast.expr, ...]]
"""A method of the manager, and specs that are given to it already."""
Holders = dict[str, Held]
LAMBDA: Final = "<lambda>"
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
    global_names = _global_holders(tree) if tree else {}
    for node, owner in functions(tree) if tree else ():
        if id(node) not in names:
            continue  # a lambda in a function: that function has its calls
        source = project.source(module, node, owner)
        aliases = global_names | _aliases(source, held.get(owner, {}))
        for call in _own_calls(source):
            asked = _asked(call, aliases, held.get(owner, {}), _kept(source, call))
            if asked is not None:
                method, args = asked
                where = names[id(node)]
                yield CallSite(CallPlace(source, module, call), method, args, where)
        for call, method in _handed_on(source):
            place = CallPlace(source, module, call)
            yield CallSite(place, method, (call.func,), names[id(node)])


def _handed_on(source: FunctionSource) -> Iterator[tuple[ast.Call, str]]:
    """Uses of a method of the manager that are no call and no name for it: something else may
    ask by them. Each stands as a call that gives nothing."""
    nodes = [n for n in ast.walk(source.node) if id(n) in source.places]
    plain = {id(n.func) for n in nodes if isinstance(n, ast.Call)}
    plain |= {id(n.args[0]) for n in nodes if isinstance(n, ast.Call) and _partial(n)}
    plain |= {id(v) for n in nodes if (v := _assignment(n)[1]) is not None and _simple(n)}
    for node in nodes:
        used = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
        if isinstance(node, ast.Attribute) and used and node.attr in METHODS:
            point = source.places[id(node)]
            alone = point.block[point.index]
            if id(node) in plain or (isinstance(alone, ast.Expr) and alone.value is node):
                continue
            call = ast.copy_location(ast.Call(node, [], []), node)
            source.places[id(call)] = point
            yield call, node.attr


def _partial(call: ast.Call) -> bool:
    return called_name(call) == "partial" and bool(call.args)


def _simple(node: ast.AST) -> bool:
    """An assignment to one name or attribute, whose calls are followed."""
    target = _assignment(node)[0]
    return isinstance(target, ast.Name) or (
        isinstance(target, ast.Attribute) and ast.unparse(target.value) in ("self", "cls")
    )


def _kept(source: FunctionSource, call: ast.Call) -> bool:
    """Whether a name or an attribute keeps what the call gives."""
    point = source.places[id(call)]
    return _assignment(point.block[point.index])[1] is call


def _global_holders(tree: ast.Module) -> Holders:
    """Names of the module that hold a method of the manager."""
    found: Holders = {}
    for node in tree.body:
        target, value = _assignment(node)
        method = _held(value, found, {}) if value is not None else None
        if isinstance(target, ast.Name) and method is not None:
            found[target.id] = method
    return found


def enclosing_names(tree: ast.Module) -> dict[int, str]:
    """The dotted name of every function, classes and functions around it included, by id; of a
    lambda outside of functions the name that keeps it."""
    found: dict[int, str] = {}
    todo: list[tuple[ast.AST, str, bool]] = [(tree, "", False)]
    while todo:
        node, prefix, inside = todo.pop()
        target, value = _assignment(node)
        for child in ast.iter_child_nodes(node):
            name, within = prefix, inside
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{prefix}.{child.name}" if prefix else child.name
                found[id(child)] = name
                within = inside or not isinstance(child, ast.ClassDef)
            elif isinstance(child, ast.Lambda) and not inside:
                word = target.id if isinstance(target, ast.Name) and value is child else LAMBDA
                found[id(child)] = f"{prefix}.{word}" if prefix else word
                within = True
            todo.append((child, name, within))
    return found


def _own_calls(source: FunctionSource) -> list[ast.Call]:
    nodes = [n for n in ast.walk(source.node) if isinstance(n, ast.Call)]
    return [n for n in nodes if id(n) in source.places]


def _asked(call: ast.Call, aliases: Holders, held: Holders, kept: bool) -> Held | None:
    """The method and the arguments, where this call is a request. A partial that is `kept` in a
    name asks nothing: its calls do."""
    found = _held(call.func, aliases, held)
    if found is not None:
        method, before = found
        plain = call.args[1:] if _of_the_class(call.func) else call.args
        return method, (*before, *_given(plain, call.keywords))
    if called_name(call) == "methodcaller" and call.args:
        named = call.args[0].value if isinstance(call.args[0], ast.Constant) else None
        if isinstance(named, str) and named in METHODS:
            return named, _given(call.args[1:], call.keywords)
    return None if kept else _of_partial(call, aliases, held)


def _of_the_class(func: ast.expr) -> bool:
    """`WorkspaceManager.get_simultaneous(manager, ...)`: the manager is its first argument."""
    text = ast.unparse(func.value) if isinstance(func, ast.Attribute) else ""
    return text.endswith("WorkspaceManager") or text.startswith("type(")


def _of_partial(call: ast.Call, aliases: Holders, held: Holders) -> Held | None:
    """The method that a partial calls, and the specs that it has already."""
    if called_name(call) != "partial" or not call.args:
        return None
    found = _held(call.args[0], aliases, held)
    if found is None:
        return None
    return found[0], (*found[1], *_given(call.args[1:], call.keywords))


def _given(args: Sequence[ast.expr], keywords: Sequence[ast.keyword]) -> tuple[ast.expr, ...]:
    return (*args, *(k.value for k in keywords))


def _held(node: ast.expr, aliases: Holders, held: Holders) -> Held | None:
    """The manager's method that an expression is, or holds, with specs that it has already."""
    if isinstance(node, ast.Attribute):
        return (node.attr, ()) if node.attr in METHODS else held.get(node.attr)
    if isinstance(node, ast.Name):
        return aliases.get(node.id)
    if isinstance(node, ast.Call) and called_name(node) == "getattr" and len(node.args) > 1:
        name = node.args[1]
        text = name.value if isinstance(name, ast.Constant) else None
        return (text, ()) if isinstance(text, str) and text in METHODS else None
    if isinstance(node, ast.Call):
        return _of_partial(node, aliases, held)
    return None


def _aliases(source: FunctionSource, held: Holders) -> Holders:
    """Local names that hold a method of the manager."""
    found: Holders = {}
    for node in ast.walk(source.node):
        target, value = _assignment(node)
        if isinstance(target, ast.Name) and value is not None:
            method = _held(value, found, held)
            if method is not None:
                found[target.id] = method
    return found


def _held_by_classes(tree: ast.Module) -> dict[str, Holders]:
    """Class -> attributes of `self`, and of the class, that hold a method of the manager.

    The specs of a partial were written in another function: its own names mean nothing where
    it is called.
    """
    found: dict[str, Holders] = {}
    for cls in (n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)):
        for node in ast.walk(cls):
            target, value = _assignment(node)
            name = target.attr if isinstance(target, ast.Attribute) else ""
            if isinstance(target, ast.Name) and node in cls.body:
                name = target.id
            method = _held(value, {}, {}) if name and value is not None else None
            if method is not None:
                specs = tuple(_Foreign().visit(copy.deepcopy(a)) for a in method[1])
                found.setdefault(cls.name, {})[name] = (method[0], specs)
    return found


class _Foreign(ast.NodeTransformer):
    """Names that mean nothing in another function of the class."""

    def visit_Name(self, node: ast.Name) -> ast.Name:
        known = node.id in ("self", "torch", "cls")
        return node if known else ast.copy_location(ast.Name(f"the {node.id}", node.ctx), node)


def _assignment(node: ast.AST) -> tuple[ast.expr | None, ast.expr | None]:
    if isinstance(node, ast.Assign):
        return node.targets[0], node.value
    if isinstance(node, ast.AnnAssign | ast.NamedExpr):
        return node.target, node.value
    return None, None


def _only_hands_on(request: CallSite) -> bool:
    """The specs are the function's own parameters: it decides nothing about them."""
    source = request.place.source
    own = set(parameters(source.node))
    names = [a.value if isinstance(a, ast.Starred) else a for a in request.args]
    plain = [n.id for n in names if isinstance(n, ast.Name)]
    kept = all(name in own and source.bindings(name) == 1 for name in plain)
    return bool(names) and len(plain) == len(names) and kept and bool(source.name)


def _callers(project: Project, request: CallSite) -> Iterator[CallSite]:
    """Calls of a function that hands its specs on."""
    source = request.place.source
    for module in project.mentioning(f"{source.name}("):
        tree = project.tree(module)
        names = enclosing_names(tree) if tree else {}
        for place in project.calls_of(source.name, [module]):
            args = tuple(a for spec in request.args for a in _passed(source, spec, place.call))
            where = names.get(id(place.source.node), place.source.qualname)
            if place.source is not source and args:
                yield CallSite(place, request.method, args, where, request.enclosing)


def _passed(source: FunctionSource, spec: ast.expr, call: ast.Call) -> Iterator[ast.expr]:
    """What a call gives for a parameter that is handed on."""
    declared = source.node.args
    name = spec.value if isinstance(spec, ast.Starred) else spec
    assert isinstance(name, ast.Name)
    own = [a.arg for a in (*declared.posonlyargs, *declared.args)]
    names = [n for n in own if n not in ("self", "cls")]
    if declared.vararg is not None and declared.vararg.arg == name.id:
        yield from call.args[len(names) :]
        return
    given = dict(zip(names, call.args, strict=False)) | {k.arg: k.value for k in call.keywords}
    value = given.get(name.id)
    if value is not None:
        starred = isinstance(spec, ast.Starred)
        yield ast.copy_location(ast.Starred(value, ast.Load()), value) if starred else value
