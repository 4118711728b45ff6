"""Whether an attribute can change after construction, read from the source of its classes."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from wstrace.slicer.syntax import parsed

# vLLM 0.13.0 to 0.33.0: process_weights_after_loading ends a layer's construction, before
# any request.
CONSTRUCTORS: Final = frozenset(
    ["__init__", "__new__", "__post_init__", "process_weights_after_loading"]
)
_TRUSTED: Final = {"abc", "typing", "enum"}
_HEAP_TYPE: Final = 1 << 9
_MUTATING: Final = frozenset(
    ["append", "extend", "insert", "pop", "remove", "clear", "update", "setdefault", "sort"]
)
Method = ast.FunctionDef | ast.AsyncFunctionDef


@lru_cache(maxsize=4096)
def changes(cls: type, attribute: str, contents: bool = False) -> str:
    """Why `attribute` of an instance may change after construction; '' when it cannot.

    `contents` also counts changes inside the container that the attribute holds.
    """
    for base in cls.__mro__:
        if _trusted(base):
            continue
        found = _class_of(base)
        if found is None:
            return f"no source for class {base.__qualname__}"
        why = changes_in(*found, attribute, contents)
        if why:
            return why
    return ""


def _trusted(cls: type) -> bool:
    """torch's and Python's own bases; a class made by exec also claims to be a builtin."""
    if cls.__module__ == "builtins":
        return not cls.__flags__ & _HEAP_TYPE
    return cls.__module__ in _TRUSTED or cls.__module__.startswith("torch.")


def _class_of(cls: type) -> tuple[ast.Module, ast.ClassDef] | None:
    module = sys.modules.get(cls.__module__)
    path = vars(module).get("__file__") if module is not None else None
    tree = parsed(path) if isinstance(path, str) else None
    if tree is None:
        return None
    found = class_def(tree, cls.__qualname__)
    return None if found is None else (tree, found)


def class_def(module: ast.Module, qualname: str) -> ast.ClassDef | None:
    """The class statement of a dotted name; None where two stand for one name."""
    nodes: list[ast.AST] = [module]
    for part in qualname.split("."):
        if part == "<locals>":
            continue
        inner = [n for node in nodes for n in ast.walk(node) if isinstance(n, ast.ClassDef)]
        nodes = [n for n in inner if n.name == part]
    return nodes[0] if len(nodes) == 1 and isinstance(nodes[0], ast.ClassDef) else None


def changes_in(
    module: ast.Module, cls: ast.ClassDef, attribute: str, contents: bool = False
) -> str:
    """As `changes`, for one class statement and the functions beside it."""
    methods = [m for m in cls.body if isinstance(m, Method)]
    building = _constructors(cls)
    for method in methods:
        if method.name not in building:
            line = _store(method, attribute, contents)
            if line:
                return f"{attribute} is changed in {cls.name}.{method.name} (line {line})"
    return _changed_outside(module, cls, attribute, contents)


@lru_cache(maxsize=1024)
def _constructors(cls: ast.ClassDef) -> frozenset[str]:
    """Constructors, and private methods that only constructors call, or that are called
    once: where `self` has not yet what they set."""
    methods = [m for m in cls.body if isinstance(m, Method)]
    found = set(CONSTRUCTORS)
    private = {m.name: m for m in methods if m.name.startswith("_") and m.name not in found}
    used = {m.name: list(_calls(m)) for m in methods}
    for _ in private:
        for name in private.keys() - found:
            calls = [(m, guard) for m, uses in used.items() for n, guard in uses if n == name]
            first = [bool(guard and _store(private[name], guard, False)) for _, guard in calls]
            late = {m for (m, _), once in zip(calls, first, strict=True) if not once}
            if calls and late <= found:
                found.add(name)
    return frozenset(found)


def _calls(node: ast.AST, guard: str = "") -> Iterator[tuple[str, str]]:
    """Attributes that `node` uses, each with the X of an `if not hasattr(self, X)` that it
    stands under, or ''."""
    if isinstance(node, ast.Attribute):
        yield node.attr, guard
    inner = _absent(node.test) if isinstance(node, ast.If) else ""
    body = node.body if isinstance(node, ast.If) else []
    for child in ast.iter_child_nodes(node):
        yield from _calls(child, inner if inner and child in body else guard)


def _absent(test: ast.expr) -> str:
    """X where the test is `not hasattr(self, "X")`, else ''."""
    call = test.operand if isinstance(test, ast.UnaryOp) else None
    if not (isinstance(call, ast.Call) and ast.unparse(call.func) == "hasattr"):
        return ""
    name = call.args[1] if len(call.args) == 2 else None
    own = name is not None and ast.unparse(call.args[0]) == "self"
    text = name.value if isinstance(name, ast.Constant) else ""
    return text if own and isinstance(text, str) else ""


def _store(node: ast.AST, attribute: str, contents: bool) -> int:
    """The line at which `node` assigns `attribute` of anything, or 0."""
    for inner in _changing(node):
        if isinstance(inner, ast.Attribute):
            if inner.attr == attribute:
                return inner.lineno
        elif isinstance(inner, ast.Call) and _sets(inner, attribute):
            return inner.lineno
        elif isinstance(inner, ast.Subscript) and _is_dict_of(inner.value):
            if _text(inner.slice) in (attribute, ""):
                return inner.lineno
        elif contents and _changes_contents(inner, attribute):
            return getattr(inner, "lineno", 1)
    return 0


@lru_cache(maxsize=4096)
def _changing(node: ast.AST) -> tuple[ast.AST, ...]:
    """What can change an attribute or its contents: attributes and elements that are assigned,
    and calls. Every attribute asks for them, so they are found once."""
    return tuple(
        n
        for n in ast.walk(node)
        if isinstance(n, ast.Call)
        or (isinstance(n, ast.Attribute | ast.Subscript) and not isinstance(n.ctx, ast.Load))
    )


def _sets(call: ast.Call, attribute: str) -> bool:
    """setattr or an update of the instance's dictionary, with this name or with one that
    cannot be read."""
    names = _set_by(call)
    return attribute in names or "" in names


def _set_by(call: ast.Call) -> tuple[str, ...]:
    """The attributes that a call assigns; "" for one whose name cannot be read."""
    called = call.func
    title = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
    if title in ("setattr", "__setattr__"):
        own = isinstance(called, ast.Attribute) and not _names_object(called.value)
        at = 0 if own else 1
        return (_text(call.args[at]),) if len(call.args) > at else ()
    if title == "update" and isinstance(called, ast.Attribute) and _is_dict_of(called.value):
        literal = [key for a in call.args if isinstance(a, ast.Dict) for key in a.keys]
        names = [_text(key) for key in literal] + [k.arg or "" for k in call.keywords]
        unread = any(not isinstance(a, ast.Dict) for a in call.args)
        return (*names, "") if unread else tuple(names)
    return ()


def _names_object(node: ast.expr) -> bool:
    """`object` and `super()`: their __setattr__ takes the instance or is its own."""
    return isinstance(node, ast.Name) and node.id == "object"


def _is_dict_of(node: ast.expr) -> bool:
    """`vars(x)` and `x.__dict__`."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "vars" and bool(node.args)
    return isinstance(node, ast.Attribute) and node.attr == "__dict__"


def _text(node: ast.expr | None) -> str:
    held = node.value if isinstance(node, ast.Constant) else ""
    return held if isinstance(held, str) else ""


def _changes_contents(node: ast.AST, attribute: str) -> bool:
    if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        return _reads(node.value, attribute)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in _MUTATING and _reads(node.func.value, attribute)
    return False


def _reads(node: ast.AST, attribute: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == attribute


def _changed_outside(
    module: ast.Module, cls: ast.ClassDef, attribute: str, contents: bool
) -> str:
    line = _stores_outside(module, cls).get(attribute)
    if not line and contents:
        line = next((n.lineno for n in _outside(module, cls) if _of_other(n, attribute)), 0)
    return f"{attribute} is assigned outside {cls.name} (line {line})" if line else ""


def _of_other(node: ast.Call | ast.Subscript | ast.Attribute, attribute: str) -> bool:
    """Whether the contents of this attribute of another object than self are changed."""
    held = node.value if isinstance(node, ast.Subscript) else getattr(node, "func", None)
    held = (
        held.value if isinstance(node, ast.Call) and isinstance(held, ast.Attribute) else held
    )
    own = isinstance(held, ast.Attribute) and ast.unparse(held.value) in ("self", "cls")
    return not own and _changes_contents(node, attribute)


@lru_cache(maxsize=1024)
def _outside(
    module: ast.Module, cls: ast.ClassDef
) -> tuple[ast.Call | ast.Subscript | ast.Attribute, ...]:
    inside = {id(n) for n in _changing(cls)}
    return tuple(
        n
        for n in _changing(module)
        if id(n) not in inside and isinstance(n, ast.Call | ast.Subscript | ast.Attribute)
    )


@lru_cache(maxsize=1024)
def _stores_outside(module: ast.Module, cls: ast.ClassDef) -> dict[str, int]:
    """Attributes that the module assigns outside the class, of other than self and cls, with
    the first line."""
    found: dict[str, int] = {}
    for node in _outside(module, cls):
        if isinstance(node, ast.Attribute):
            if ast.unparse(node.value) not in ("self", "cls"):
                found.setdefault(node.attr, node.lineno)
        elif isinstance(node, ast.Call):
            for name in _set_by(node):
                found.setdefault(name, node.lineno)
        elif _is_dict_of(node.value):
            found.setdefault(_text(node.slice), node.lineno)
    return found


@lru_cache(maxsize=4096)
def module_constant(path: str, name: str) -> bool:
    """Whether a module binds `name` exactly once, at its top level."""
    module = parsed(path)
    if module is None:
        return False
    bound = [
        n
        for n in ast.walk(module)
        if isinstance(n, ast.Name) and n.id == name and not isinstance(n.ctx, ast.Load)
    ]
    shared = any(isinstance(n, ast.Global) and name in n.names for n in ast.walk(module))
    changed = any(_changes_global(n, name) for n in _changing(module))
    top = [
        n for s in module.body if isinstance(s, ast.Assign | ast.AnnAssign) for n in _names(s)
    ]
    return len(bound) == 1 and not shared and not changed and name in top


def _changes_global(node: ast.AST, name: str) -> bool:
    """An element of the container `name`, one of its changing methods, or globals()[name]."""
    held: ast.AST = node.value if isinstance(node, ast.Subscript) else node
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        held = node.func.value if node.func.attr in _MUTATING else node
    if isinstance(held, ast.Call) and isinstance(held.func, ast.Name):
        whole = held.func.id == "globals" and held is not node
        known = _text(node.slice) if isinstance(node, ast.Subscript) else ""
        return whole and known in (name, "")
    return isinstance(held, ast.Name) and held.id == name and held is not node


def _names(statement: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return [t.id for t in targets if isinstance(t, ast.Name)]
