"""What a statement does to a local name, seen from a later use of that name.

Anything that might change a list, and is not one of the few understood forms, counts as
`Lost`: a list of specs that is appended to must never come out shorter.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from wstrace.slicer.syntax import LOOPS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wstrace.slicer.syntax import Block, FunctionSource

# PyTorch 2.13: methods of torch.Tensor that change a tensor's shape in place.
_RESHAPING: Final = frozenset(("resize_", "resize_as_", "unsqueeze_", "squeeze_", "t_", "set_"))
_READING: Final = {
    *("len", "max", "min", "sum", "tuple", "list", "sorted", "zip", "enumerate", "range"),
    *("isinstance", "prod", "print", "any", "all"),
}


@dataclass(frozen=True)
class Bind:
    """`name = value`; `path` leads into a tuple of targets."""

    value: ast.expr
    path: tuple[int, ...] = ()


@dataclass(frozen=True)
class Augment:
    """`name op= value`."""

    statement: ast.AugAssign


@dataclass(frozen=True)
class Append:
    """`name.append(value)`, or extend with `many`."""

    value: ast.expr
    many: bool


@dataclass(frozen=True)
class Branch:
    """An if with an effect in one of its arms."""

    statement: ast.If


@dataclass(frozen=True)
class Through:
    """The effect lies in a block that always runs: a with, or a try that cannot resume."""

    block: Block


@dataclass(frozen=True)
class Local:
    """A function, class or import in the function's body."""

    statement: ast.stmt


@dataclass(frozen=True)
class Lost:
    """What the name holds after this cannot be told. `lists_only`: it may have been changed
    in place by something that can only hurt a list."""

    why: str
    lists_only: bool = False


Effect = Bind | Augment | Append | Branch | Through | Local | Lost | None


def effect(source: FunctionSource, statement: ast.stmt, name: str) -> Effect:
    """The statement's effect on `name`, or None; cached in `source`."""
    key = (id(statement), name)
    if key not in source.effects:
        source.effects[key] = _effect(statement, name)
    found = source.effects[key]
    assert found is None or isinstance(
        found, Bind | Augment | Append | Branch | Through | Local | Lost
    )
    return found


def _effect(statement: ast.stmt, name: str) -> Effect:
    if not any(_mentions(node, name) for node in ast.walk(statement)):
        return None
    if any(isinstance(n, ast.NamedExpr) and n.target.id == name for n in ast.walk(statement)):
        return Lost("assigned inside an expression")
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return _definition(statement, name)
    simple = _simple(statement, name)
    if simple is not None:
        return simple
    if isinstance(statement, ast.If):
        touched = any(_effect(s, name) for s in (*statement.body, *statement.orelse))
        lost = _escape([statement.test], name)
        return Branch(statement) if touched and not lost else lost
    return _compound(statement, name)


def _mentions(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Name):
        return node.id == name
    if isinstance(node, ast.Global | ast.Nonlocal):
        return name in node.names
    if isinstance(node, ast.alias):
        return name in (node.asname, node.name.split(".")[0])
    if isinstance(node, ast.ExceptHandler | ast.FunctionDef | ast.ClassDef):
        return node.name == name
    return isinstance(node, ast.MatchAs | ast.MatchStar) and node.name == name


def _definition(statement: ast.stmt, name: str) -> Effect:
    if getattr(statement, "name", "") == name:
        return Local(statement)
    if any(isinstance(n, ast.Nonlocal) and name in n.names for n in ast.walk(statement)):
        return Lost("rebound by an inner function")
    return Lost("held by an inner function", lists_only=True)


def _assigned(statement: ast.Assign | ast.AnnAssign, name: str) -> Effect:
    targets: list[ast.expr] = []
    targets += statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    value = statement.value
    for target in targets:
        path = _target_path(target, name)
        if path is not None:
            return Bind(value, path) if value else None
    return _stores(targets, name) or _escape([value] if value else [], name, bare=True)


def _simple(statement: ast.stmt, name: str) -> Effect:
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        return _assigned(statement, name)
    if isinstance(statement, ast.AugAssign):
        if isinstance(statement.target, ast.Name) and statement.target.id == name:
            return Augment(statement)
        return _stores([statement.target], name) or _escape([statement.value], name)
    if isinstance(statement, ast.Expr):
        return _appended(statement.value, name) or _escape([statement.value], name)
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return Local(statement)
    if isinstance(statement, ast.Delete):
        return Lost("deleted")
    if isinstance(statement, ast.Global | ast.Nonlocal):
        return Lost("not a local name")
    return None


def _compound(statement: ast.stmt, name: str) -> Effect:
    if isinstance(statement, ast.With | ast.AsyncWith):
        for item in statement.items:
            if item.optional_vars and _target_path(item.optional_vars, name) is not None:
                return Lost("bound by a with statement")
        touched = any(_effect(s, name) for s in statement.body)
        lost = _escape([item.context_expr for item in statement.items], name)
        return Through(statement.body) if touched and not lost else lost
    if isinstance(statement, ast.Try):
        return _try(statement, name)
    if isinstance(statement, LOOPS):
        return _loop(statement, name)
    if isinstance(statement, ast.Match):
        touched = binds(statement, name)
        return Lost("assigned in a match statement") if touched else _escape([statement], name)
    return _escape([statement], name)


def _try(statement: ast.Try, name: str) -> Effect:
    parts = [*statement.body, *statement.orelse, *statement.finalbody]
    parts += [s for handler in statement.handlers for s in handler.body]
    if not any(_effect(s, name) for s in parts):
        return None
    resumes = any(not terminates(handler.body) for handler in statement.handlers)
    if resumes or statement.orelse or statement.finalbody:
        return Lost("assigned in a try statement")
    return Through(statement.body)


def _loop(statement: ast.stmt, name: str) -> Effect:
    if binds(statement, name):
        return Lost("assigned in a loop")
    touched = any(isinstance(n, ast.stmt) and _simple(n, name) for n in ast.walk(statement))
    return Lost("may be changed in a loop", lists_only=True) if touched else None


def binds(node: ast.AST, name: str) -> bool:
    """Whether anything in `node` assigns `name`."""
    return any(
        isinstance(n, ast.Name) and n.id == name and not isinstance(n.ctx, ast.Load)
        for n in ast.walk(node)
    )


def _target_path(target: ast.expr, name: str) -> tuple[int, ...] | None:
    if isinstance(target, ast.Name):
        return () if target.id == name else None
    if isinstance(target, ast.Starred):
        return (-1,) if _target_path(target.value, name) == () else None
    if isinstance(target, ast.Tuple | ast.List):
        for number, part in enumerate(target.elts):
            path = _target_path(part, name)
            if path is not None:
                before = any(isinstance(e, ast.Starred) for e in target.elts[:number])
                return (number - len(target.elts) if before else number, *path)
    return None


def _stores(targets: Sequence[ast.expr], name: str) -> Effect:
    for target in targets:
        for node in ast.walk(target):
            inner = getattr(node, "value", None)
            if isinstance(node, ast.Subscript) and _is(inner, name):
                return Lost("an element is assigned", lists_only=True)
    return None


def _appended(call: ast.expr, name: str) -> Effect:
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
        return None
    if not _is(call.func.value, name):
        return None
    if call.func.attr in ("append", "extend") and len(call.args) == 1:
        return Append(call.args[0], call.func.attr == "extend")
    return None


def _escape(nodes: Sequence[ast.AST], name: str, bare: bool = False) -> Effect:
    """Whether `name` is handed to something that could change what it holds."""
    if bare and any(_is(part, name) for n in nodes for part in _kept(n)):
        return Lost("kept under another name", lists_only=True)
    for node in (inner for n in nodes for inner in ast.walk(n)):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Attribute) and _is(called.value, name):
            if called.attr in _RESHAPING:
                return Lost(f"{called.attr}() changes its shape")
            return Lost(f"{called.attr}() may change it", lists_only=True)
        title = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        values = [*node.args, *(k.value for k in node.keywords)]
        if title not in _READING and any(_is(v, name) for v in values):
            return Lost(
                f"handed to {title or 'a call'}(), which may change it", lists_only=True
            )
    return None


def _kept(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    if isinstance(node, ast.Tuple | ast.List):
        for part in node.elts:
            yield from _kept(part)
    elif isinstance(node, ast.IfExp):
        yield from _kept(node.body)
        yield from _kept(node.orelse)


def _is(node: ast.AST | None, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def terminates(block: list[ast.stmt]) -> bool:
    """Whether control never leaves the end of `block`."""
    for statement in block:
        if isinstance(statement, ast.Return | ast.Raise | ast.Continue | ast.Break):
            return True
        if isinstance(statement, ast.If) and statement.orelse:
            if terminates(statement.body) and terminates(statement.orelse):
                return True
        elif isinstance(statement, ast.With) and terminates(statement.body):
            return True
    return False
