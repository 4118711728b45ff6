"""Source of a running code object: its syntax tree, and where in it a frame stands.

Files are parsed once. Nothing is guessed: a code object without source, or whose source
no longer matches, gives None, and the slicer stops there.
"""

from __future__ import annotations

import ast
import linecache
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import CodeType

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Block = list[ast.stmt]
LOOPS: Final = (ast.For, ast.AsyncFor, ast.While)
_BODIES: Final = ("body", "orelse", "finalbody", "handlers", "cases")


@dataclass(frozen=True)
class CodePoint:
    """A place between statements: before `block[index]`."""

    block: Block = field(compare=False)
    index: int = 0


@dataclass(frozen=True)
class Enclosing:
    """The statement that holds a block, and the place of that statement."""

    owner: ast.AST
    field: str
    point: CodePoint


@dataclass(eq=False)
class FunctionSource:
    """A function's tree, with the way from every block to the block around it."""

    node: FunctionNode
    file: str
    path: str
    qualname: str
    in_class: str = ""
    outer: dict[int, Enclosing] = field(default_factory=dict)
    places: dict[int, CodePoint] = field(default_factory=dict)
    effects: dict[tuple[int, str], object] = field(default_factory=dict)
    lines: dict[int, str] = field(default_factory=dict)

    @cached_property
    def locals(self) -> frozenset[str]:
        """Every name that is local to the function, parameters included."""
        return frozenset({*parameters(self.node), *_bound(self.body)} - _globals(self.body))

    @cached_property
    def attribute_stores(self) -> dict[str, int]:
        """Attribute names that the function assigns on anything, with the line."""
        return {
            n.attr: n.lineno
            for n in ast.walk(self.node)
            if isinstance(n, ast.Attribute) and not isinstance(n.ctx, ast.Load)
        }

    @cached_property
    def shared(self) -> frozenset[str]:
        """Names that inner functions rebind with nonlocal."""
        inner = [n for n in ast.walk(self.node) if isinstance(n, ast.Nonlocal)]
        return frozenset(name for n in inner for name in n.names)

    @cached_property
    def closed_over(self) -> frozenset[str]:
        """Names that inner functions or lambdas use, and could change the contents of."""
        inner = [n for n in ast.walk(self.node) if isinstance(n, FunctionNode)]
        used = [m for n in inner if n is not self.node for m in ast.walk(n)]
        return frozenset(m.id for m in used if isinstance(m, ast.Name))

    @cached_property
    def loop_targets(self) -> frozenset[str]:
        """Names that for loops bind."""
        loops = [n for n in _own(self.body) if isinstance(n, ast.For | ast.AsyncFor)]
        parts = [n for loop in loops for n in ast.walk(loop.target)]
        return frozenset(n.id for n in parts if isinstance(n, ast.Name))

    @cached_property
    def shaped(self) -> frozenset[str]:
        """Names whose `.shape` the function reads: tensors."""
        nodes = [n for n in ast.walk(self.node) if isinstance(n, ast.Attribute)]
        held = [n.value for n in nodes if n.attr == "shape"]
        return frozenset(n.id for n in held if isinstance(n, ast.Name))

    @property
    def name(self) -> str:
        """The plain name; empty for a lambda."""
        return "" if isinstance(self.node, ast.Lambda) else self.node.name

    def bindings(self, name: str) -> int:
        """How often the function binds `name`, parameters included."""
        return self._bindings[name]

    @cached_property
    def _bindings(self) -> Counter[str]:
        names = [n for n in _own(self.body) if isinstance(n, ast.Name)]
        stored = [n.id for n in names if not isinstance(n.ctx, ast.Load)]
        return Counter([*parameters(self.node), *stored])

    @property
    def body(self) -> Block:
        """The statements; a lambda's is its one return."""
        if isinstance(self.node, ast.Lambda):
            return self._lambda_body
        return self.node.body

    def __post_init__(self) -> None:
        if isinstance(self.node, ast.Lambda):
            returned = ast.copy_location(ast.Return(self.node.body), self.node.body)
            self._lambda_body: Block = [returned]
        self._index(self.body)

    def _index(self, block: Block) -> None:
        for number, statement in enumerate(block):
            point = CodePoint(block, number)
            self._place(statement, point)
            for name, inner in _inner_blocks(statement):
                self.outer[id(inner)] = Enclosing(statement, name, point)
                self._index(inner)

    def _place(self, statement: ast.stmt, point: CodePoint) -> None:
        """Every expression of the statement itself, not of the blocks in it."""
        todo: list[ast.AST] = [statement]
        while todo:
            node = todo.pop()
            self.places.setdefault(id(node), point)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            children = ast.iter_child_nodes(node)
            todo.extend(child for child in children if not isinstance(child, ast.stmt))

    def where(self, node: ast.AST) -> str:
        """`file:line` of a node."""
        return f"{self.file}:{getattr(node, 'lineno', 0)}"

    def line(self, node: ast.AST) -> str:
        """`file:line: text`, the text on one line and at most 160 characters.

        Of an if or a loop, only its head.
        """
        if id(node) not in self.lines:
            text = " ".join(_head(node).split())
            self.lines[id(node)] = f"{self.where(node)}: {text[:160]}"
        return self.lines[id(node)]


def _head(node: ast.AST) -> str:
    if isinstance(node, ast.If):
        return f"if {ast.unparse(node.test)}"
    if isinstance(node, ast.For | ast.AsyncFor):
        return f"for {ast.unparse(node.target)} in {ast.unparse(node.iter)}"
    return ast.unparse(node)


def _own(body: Block) -> Iterator[ast.AST]:
    """Nodes of the function itself, not of functions in it."""
    todo: list[ast.AST] = list(body)
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
        ):
            todo.extend(ast.iter_child_nodes(node))


def _bound(body: Block) -> set[str]:
    found = set()
    for node in _own(body):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.ExceptHandler) and node.name:
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {a.asname or a.name.split(".")[0] for a in node.names}
    return found


def _globals(body: Block) -> set[str]:
    return {n for s in _own(body) if isinstance(s, ast.Global | ast.Nonlocal) for n in s.names}


def _inner_blocks(statement: ast.stmt) -> list[tuple[str, Block]]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return []
    found: list[tuple[str, Block]] = []
    for name in _BODIES:
        part = getattr(statement, name, None) or []
        if name in ("handlers", "cases"):
            found += [(name, inner.body) for inner in part]
        elif part:
            found.append((name, part))
    return found


@lru_cache(maxsize=256)
def parsed(path: str) -> ast.Module | None:
    """The module's tree, or None: no such file, no source, not today's syntax."""
    lines = linecache.getlines(path)
    if not lines:
        return None
    try:
        return ast.parse("".join(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def function_source(code: CodeType) -> FunctionSource | None:
    """The source of `code`; None when there is none or it is not the one that was compiled."""
    return _function_in(code.co_filename, code)


@lru_cache(maxsize=1024)
def _function_in(path: str, code: CodeType) -> FunctionSource | None:
    """As `function_source`. Code objects of two files are equal where their bytecode is: their
    file is no part of the comparison, nor are annotations."""
    module = parsed(path)
    if module is None:
        return None
    for node, in_class in functions(module):
        if _first_line(node) == code.co_firstlineno and _is_of(node, code):
            return made(node, path, code.co_qualname, in_class)
    return None


def made(node: FunctionNode, path: str, qualname: str, in_class: str) -> FunctionSource:
    """A FunctionSource whose `file` is the path below the last site-packages."""
    return FunctionSource(node, short(path), path, qualname, in_class)


def short(path: str) -> str:
    """A path that is the same on every machine, as far as there is one."""
    parts = path.replace("\\", "/").split("/site-packages/")
    return parts[-1] if len(parts) > 1 else path.replace("\\", "/").rsplit("/", 1)[-1]


@lru_cache(maxsize=512)
def functions(module: ast.Module) -> tuple[tuple[FunctionNode, str], ...]:
    """All functions and lambdas of a module, with the class a method stands in."""
    found: list[tuple[FunctionNode, str]] = []
    todo: list[tuple[ast.AST, str]] = [(module, "")]
    while todo:
        node, owner = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            found.append((node, owner))
            owner = ""
        if isinstance(node, ast.ClassDef):
            owner = node.name
        elif isinstance(node, ast.expr):
            owner = ""
        todo += [(child, owner) for child in ast.iter_child_nodes(node)]
    return tuple(found)


def _first_line(node: FunctionNode) -> int:
    decorators = getattr(node, "decorator_list", [])
    return int(min([node.lineno, *(d.lineno for d in decorators)]))


def parameters(node: FunctionNode) -> list[str]:
    """Parameter names in the order of co_varnames."""
    a = node.args
    plain = [p.arg for p in (*a.posonlyargs, *a.args, *a.kwonlyargs)]
    return plain + [p.arg for p in (a.vararg, a.kwarg) if p]


def _is_of(node: FunctionNode, code: CodeType) -> bool:
    name = "<lambda>" if isinstance(node, ast.Lambda) else node.name
    if name != code.co_name:
        return False
    arguments = [_unmangled(n) for n in code.co_varnames]
    want = parameters(node)
    return arguments[: len(want)] == [_unmangled(n) for n in want]


def _unmangled(name: str) -> str:
    if name.startswith("_") and "__" in name[1:] and not name.endswith("__"):
        return "__" + name[1:].partition("__")[2]
    return name


def call_at(code: CodeType, lasti: int) -> ast.Call | None:
    """The call at which a frame of `code` stands, by the exact columns of its instruction."""
    return _call_in(code.co_filename, code, lasti)


@lru_cache(maxsize=4096)
def _call_in(path: str, code: CodeType, lasti: int) -> ast.Call | None:
    source = _function_in(path, code)
    place = next(islice(code.co_positions(), lasti // 2, None), None)
    if source is None or place is None or None in place:
        return None
    # A call's end is its own closing parenthesis; its start may be moved to the attribute.
    for node in ast.walk(source.node):
        if isinstance(node, ast.Call) and (node.end_lineno, node.end_col_offset) == place[1::2]:
            return node
    return None


def asserted_class(source: FunctionSource, name: str) -> ast.expr | None:
    """The class expression of `assert isinstance(name, X)`, `name: X`, or `cast(X, ...)`."""
    for node in ast.walk(source.node):
        if isinstance(node, ast.Assert):
            found = _isinstance(node.test, name)
        elif isinstance(node, ast.AnnAssign):
            found = node.annotation if _is_name(node.target, name) else None
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            found = _cast(node.value) if _is_name(node.targets[0], name) else None
        else:
            continue
        if found is not None:
            return found
    return None


def _isinstance(test: ast.expr, name: str) -> ast.expr | None:
    if isinstance(test, ast.BoolOp):
        parts = [_isinstance(value, name) for value in test.values]
        return next((p for p in parts if p is not None), None)
    if not (isinstance(test, ast.Call) and isinstance(test.func, ast.Name)):
        return None
    if test.func.id != "isinstance" or not _is_name(test.args[0], name):
        return None
    kind = test.args[1]
    return kind.elts[0] if isinstance(kind, ast.Tuple) else kind


def _cast(call: ast.Call) -> ast.expr | None:
    if isinstance(call.func, ast.Name) and call.func.id == "cast" and len(call.args) == 2:
        return call.args[0]
    return None


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


GLOBAL = "globals()"
"""What a plain name in a function is taken from, where the function does not bind it."""


@lru_cache(maxsize=256)
def uses_by_name(path: str) -> dict[str, tuple[tuple[int, int, str, str], ...]]:
    """Every use of a name in a module, calls or not, since a function that is handed on is
    called elsewhere: line, column, what it is taken from ("self.a" of `self.a.f`, "" for a
    plain name or a getattr) and the class that it stands in."""
    found: dict[str, list[tuple[int, int, str, str]]] = {}

    def visit(node: ast.AST, in_class: str, own: frozenset[str] | None) -> None:
        for name, on in _used(node):
            if isinstance(node, ast.Name) and own is not None:
                if name in own:
                    continue
                on = GLOBAL
            place = (getattr(node, "lineno", 0), getattr(node, "col_offset", 0), on, in_class)
            found.setdefault(name, []).append(place)
        if isinstance(node, FunctionNode):
            body = [] if isinstance(node, ast.Lambda) else node.body
            own = (own or frozenset()) | {*parameters(node), *_bound(body)}
        inner = node.name if isinstance(node, ast.ClassDef) else in_class
        for child in ast.iter_child_nodes(node):
            visit(child, inner, None if isinstance(node, ast.ClassDef) else own)

    tree = parsed(path)
    if tree is not None:
        visit(tree, "", None)
    return {name: tuple(places) for name, places in found.items()}


def _used(node: ast.AST) -> list[tuple[str, str]]:
    """The names that this node takes, each with what it takes them from."""
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        return [(node.attr, ast.unparse(node.value))]
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        return [(node.id, "")]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        words = [a.value for a in node.args if isinstance(a, ast.Constant)]
        return [(w, "") for w in words if node.func.id == "getattr" and isinstance(w, str)]
    return []


@lru_cache(maxsize=1024)
def defined(path: str, name: str) -> int:
    """How many functions and methods of this name a module has."""
    tree = parsed(path)
    every = ast.walk(tree) if tree is not None else ()
    return sum(isinstance(n, FunctionNode) and getattr(n, "name", "") == name for n in every)


def called_name(call: ast.Call) -> str:
    """The last name of what is called: `lock` of `manager.lock()`; empty where it has none."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""
