"""The conditions under which a line runs: ifs around it, and early ends before it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from wstrace.slicer.effects import terminates
from wstrace.slicer.syntax import Block, FunctionSource

Metadata = Literal["absent", "present"]

# How vLLM 0.13.0 to 0.33.0 names what a profile run has not: `attn_metadata`, `swa_metadata`.
# The parts of one (`prefill_metadata`) may be absent in a real step too.
# matches: "attn_metadata"
_METADATA: Final = re.compile(r"(^|_|\.)(attn|attention|swa|forward|layer)?_?metadata(_raw)?$")
# matches: "prefill_metadata"
_PART: Final = re.compile(r"(prefill|decode|chunk\w*|context)_metadata$")
# matches: "is_profile_run"
_PROFILING: Final = re.compile(r"^(is_|in_)?(profil\w*|dummy\w*)(_run)?$")


@dataclass(frozen=True)
class FlowGuard:
    """A condition that is `holds` where the line runs.

    `fatal`: where it does not hold the function raises, so that the line is not just left out.
    `loop`: the test is what a `for` goes over, which must have an item.
    """

    test: ast.expr
    holds: bool
    line: int
    fatal: bool = False
    loop: bool = False

    @property
    def text(self) -> str:
        """The condition as it must hold, in the source's words."""
        if self.loop:
            return f"{ast.unparse(self.test)} has an item"
        return ast.unparse(self.test) if self.holds else f"not ({ast.unparse(self.test)})"


def guards(source: FunctionSource, node: ast.AST) -> list[FlowGuard]:
    """The conditions between the function's start and `node`, innermost first."""
    found = list(_inside_expression(source, node))
    point = source.places[id(node)]
    while True:
        found += _before(point.block, point.index)
        enclosing = source.outer.get(id(point.block))
        if enclosing is None:
            return found
        owner = enclosing.owner
        if isinstance(owner, ast.If) and enclosing.field in ("body", "orelse"):
            found.append(FlowGuard(owner.test, enclosing.field == "body", owner.lineno))
        elif isinstance(owner, ast.While) and enclosing.field == "body":
            found.append(FlowGuard(owner.test, True, owner.lineno))
        elif isinstance(owner, ast.For | ast.AsyncFor) and enclosing.field == "body":
            found.append(FlowGuard(owner.iter, True, owner.lineno, loop=True))
        point = enclosing.point


def _inside_expression(source: FunctionSource, node: ast.AST) -> Iterator[FlowGuard]:
    """`request() if test else other`, in the statement that holds the node."""
    point = source.places[id(node)]
    for outer in ast.walk(point.block[point.index]):
        if isinstance(outer, ast.IfExp):
            for part, holds in ((outer.body, True), (outer.orelse, False)):
                if any(n is node for n in ast.walk(part)):
                    yield FlowGuard(outer.test, holds, outer.lineno)


def _before(block: Block, index: int) -> Iterator[FlowGuard]:
    """What earlier statements of a block leave true: an end in one arm, or an assertion."""
    for statement in block[:index]:
        if isinstance(statement, ast.If):
            if terminates(statement.body):
                fatal = _raises(statement.body)
                yield FlowGuard(statement.test, False, statement.lineno, fatal)
            elif statement.orelse and terminates(statement.orelse):
                fatal = _raises(statement.orelse)
                yield FlowGuard(statement.test, True, statement.lineno, fatal)
        elif isinstance(statement, ast.Assert):
            yield FlowGuard(statement.test, True, statement.lineno, fatal=True)


def _raises(block: Block) -> bool:
    return isinstance(block[-1], ast.Raise)


def dead(source: FunctionSource, node: ast.AST) -> bool:
    """Whether an earlier statement ends every run before `node`: it stands behind a return."""
    point = source.places[id(node)]
    while True:
        if terminates(point.block[: point.index]):
            return True
        enclosing = source.outer.get(id(point.block))
        if enclosing is None:
            return False
        point = enclosing.point


def parts(source: FunctionSource, guard: FlowGuard) -> Iterator[tuple[ast.expr, bool]]:
    """Each condition that a guard needs, alone, and whether it must hold; names that the
    function assigns once are written out."""
    todo = [(expanded(source, guard.test), guard.holds)]
    narrowed: set[str] = set()
    while todo:
        test, holds = todo.pop()
        if isinstance(test, ast.Name) and holds and test.id not in narrowed:
            narrowed.add(test.id)
            steps = _narrowed(source, test.id)
            todo += [(step, True) for step in steps]
            if steps:
                continue
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            todo.append((test.operand, not holds))
        elif isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) == holds:
            todo += [(value, holds) for value in test.values]
        else:
            yield test, holds


def _narrowed(source: FunctionSource, name: str) -> list[ast.expr]:
    """What must hold for a name that is made of several steps, each an `x = x and more`; []
    where it is something else."""
    first: list[ast.expr] = []
    for node in ast.walk(source.node):
        if not (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name):
            continue
        value = node.value
        conjunction = isinstance(value, ast.BoolOp) and isinstance(value.op, ast.And)
        if isinstance(value, ast.BoolOp) and conjunction and first:
            if ast.unparse(value.values[0]) != name:
                return []
            first += value.values[1:]
        elif first:
            return []
        else:
            first = [value]
    return first if source.bindings(name) > 1 else []


def expanded(source: FunctionSource, test: ast.expr, depth: int = 3) -> ast.expr:
    """The test with names that the function assigns once written out."""
    if depth == 0:
        return test
    copied = ast.parse(ast.unparse(test), mode="eval").body
    written: ast.expr = _Written(source, depth).visit(copied)
    return written


class _Written(ast.NodeTransformer):
    def __init__(self, source: FunctionSource, depth: int) -> None:
        self.source = source
        self.depth = depth

    def visit_Name(self, node: ast.Name) -> ast.expr:
        value = assigned_once(self.source, node.id)
        # A metadata object stays a name: its value says only where it came from.
        if value is None or _METADATA.search(node.id):
            return node
        return expanded(self.source, value, self.depth - 1)


def assigned_once(source: FunctionSource, name: str) -> ast.expr | None:
    """The value of a local name with one assignment."""
    if source.bindings(name) != 1:
        return None
    for node in ast.walk(source.node):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Name) and target.id == name:
                return node.value
    return None


def metadata(guard: FlowGuard, source: FunctionSource) -> Metadata | None:
    """What a condition says of the attention metadata, which a profile run has not."""
    return _said(expanded(source, guard.test), guard.holds)


def _said(test: ast.expr, holds: bool) -> Metadata | None:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _said(test.operand, not holds)
    if isinstance(test, ast.BoolOp):
        parts = [_said(value, holds) for value in test.values]
        every = isinstance(test.op, ast.Or) == holds  # any of them may be the one that holds
        if every:
            return parts[0] if len(set(parts)) == 1 else None
        return next((p for p in parts if p is not None), None)
    absent = _absence(test)
    if absent is None:
        return None
    return "absent" if absent == holds else "present"


def _absence(test: ast.expr) -> bool | None:
    """True where the test holds without metadata, False where it holds with it."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        none = isinstance(test.comparators[0], ast.Constant) and (
            test.comparators[0].value is None
        )
        if none and isinstance(test.ops[0], ast.Is | ast.IsNot) and _is_metadata(test.left):
            return isinstance(test.ops[0], ast.Is)
        return None
    if isinstance(test, ast.Call) and ast.unparse(test.func) == "isinstance" and test.args:
        return False if _is_metadata(test.args[0]) else None
    if isinstance(test, ast.Name | ast.Attribute):
        word = test.id if isinstance(test, ast.Name) else test.attr
        if _PROFILING.match(word):
            return True
        return False if _is_metadata(test) else None
    return None


def _is_metadata(node: ast.expr) -> bool:
    text = ast.unparse(node)
    return bool(_METADATA.search(text)) and not _PART.search(text)


def unlocked(guard: FlowGuard) -> bool:
    """Whether the line runs only while the workspace is not locked."""
    test, holds = guard.test, guard.holds
    parts = [test]
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) and holds:
        parts = list(test.values)
    return any(_not_locked(part, holds) for part in parts)


def _not_locked(test: ast.expr, holds: bool) -> bool:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _not_locked(test.operand, not holds)
    return (
        isinstance(test, ast.Call)
        and ast.unparse(test.func).endswith("is_locked")
        and (not holds)
    )


def parameter_absent(guard: FlowGuard, source: FunctionSource) -> str:
    """The parameter that must be None where the line runs, or ''."""
    test, holds = guard.test, guard.holds
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1):
        return ""
    right = test.comparators[0]
    if not (isinstance(right, ast.Constant) and right.value is None):
        return ""
    if isinstance(test.ops[0], ast.Is) != holds or not isinstance(test.left, ast.Name):
        return ""
    declared = source.node.args
    names = {a.arg for a in (*declared.args, *declared.kwonlyargs, *declared.posonlyargs)}
    return test.left.id if test.left.id in names else ""
