"""The conditions between a function's start and a line of it, and lines that never run.

A line may be left out by an `if`, by an early end before it, by a loop without an item, by a
handler that takes an error, by an operand that is not reached. Each is a guard.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from wstrace.slicer.effects import terminates
from wstrace.slicer.syntax import Block, Enclosing, FunctionSource, called_name

# Python's typing: False where the code runs.
_NEVER: Final = "TYPE_CHECKING"
# vLLM 0.28.0 to 0.33.0: another arena than the one of lane 0.
_LANE: Final = "use_workspace_lane"
_SUPPRESS: Final = "suppress"
# vLLM 0.13.0 to 0.33.0: workspace.lock_workspace, unlock_workspace and the manager's methods.
_LOCKS: Final = ("lock_workspace", "lock")
_UNLOCKS: Final = ("unlock_workspace", "unlock")
_Try: Final = (ast.Try, ast.TryStar)
_SIMPLE: Final = (ast.Constant, ast.Name, ast.Tuple, ast.List, ast.Load, ast.Store)


@dataclass(frozen=True)
class FlowGuard:
    """A condition that is `holds` where the line runs.

    `fatal`: where it does not hold the function raises, so that the line is not just left out.
    `loop`: the test is what a `for` goes over, which must have an item. `said`: the condition
    is no expression of the source, and `test` only a part of it.
    """

    test: ast.expr
    holds: bool
    line: int
    fatal: bool = False
    loop: bool = False
    said: str = ""

    @property
    def text(self) -> str:
        """The condition as it must hold, in the source's words."""
        if self.said:
            return self.said
        if self.loop:
            return f"{ast.unparse(self.test)} has an item"
        return ast.unparse(self.test) if self.holds else f"not ({ast.unparse(self.test)})"

    @property
    def plain(self) -> bool:
        """Whether `test` is the whole condition."""
        return not (self.loop or self.said)


def guards(source: FunctionSource, node: ast.AST) -> list[FlowGuard]:
    """The conditions between the function's start and `node`, innermost first; those that
    constants fulfil are none."""
    return [g for g in _every(source, node) if constant_truth(g) is not True]


def dead(source: FunctionSource, node: ast.AST) -> bool:
    """Whether no run of the function comes to `node`: it stands behind a return, or under a
    condition that constants deny."""
    point = source.places[id(node)]
    while True:
        if terminates(point.block[: point.index]):
            return True
        enclosing = source.outer.get(id(point.block))
        if enclosing is None:
            break
        point = enclosing.point
    return any(constant_truth(g) is False for g in _every(source, node))


def after_lock(source: FunctionSource, node: ast.AST) -> bool:
    """Whether an earlier statement of the function has locked the workspace, with no unlock
    between."""
    point = source.places[id(node)]
    while True:
        for statement in reversed(point.block[: point.index]):
            called = {called_name(n) for n in ast.walk(statement) if isinstance(n, ast.Call)}
            if not called.isdisjoint(_UNLOCKS):
                return False
            if not called.isdisjoint(_LOCKS) and _locks(statement):
                return True
        enclosing = source.outer.get(id(point.block))
        if enclosing is None:
            return False
        point = enclosing.point


def _locks(statement: ast.stmt) -> bool:
    """`lock()` of a workspace manager, and not of a thread."""
    texts = [ast.unparse(n.func) for n in ast.walk(statement) if isinstance(n, ast.Call)]
    return any(
        t.endswith("lock_workspace") or (t.endswith(".lock") and "workspace" in t)
        for t in texts
    )


def deferred(source: FunctionSource, node: ast.AST) -> ast.Lambda | None:
    """The lambda around a node: it runs when that is called."""
    if isinstance(source.node, ast.Lambda):
        return None
    point = source.places[id(node)]
    lambdas = [n for n in ast.walk(point.block[point.index]) if isinstance(n, ast.Lambda)]
    inside = [n for n in lambdas if n is not node and any(m is node for m in ast.walk(n.body))]
    return inside[0] if inside else None  # the outermost: ast.walk goes from the outside in


def constant_truth(guard: FlowGuard) -> bool | None:
    """Whether a guard always, or never, holds: by constants alone."""
    if guard.said:
        return None
    if guard.loop:
        return _items(guard.test)
    found = _truth(guard.test)
    return None if found is None else found == guard.holds


def _truth(test: ast.expr) -> bool | None:
    if isinstance(test, ast.Constant):
        return bool(test.value)
    if isinstance(test, ast.Name | ast.Attribute):
        word = test.id if isinstance(test, ast.Name) else test.attr
        return False if word == _NEVER else None
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _truth(test.operand)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        parts = [_truth(value) for value in test.values]
        stops = isinstance(test.op, ast.Or)
        if stops in parts:
            return stops
        return None if None in parts else not stops
    return None


def _items(looped: ast.expr) -> bool | None:
    """Whether a loop over a literal has an item."""
    if isinstance(looped, ast.Tuple | ast.List | ast.Set):
        starred = any(isinstance(e, ast.Starred) for e in looped.elts)
        return None if starred else bool(looped.elts)
    if isinstance(looped, ast.Call) and called_name(looped) in (
        "enumerate",
        "reversed",
        "sorted",
    ):
        return _items(looped.args[0]) if looped.args else None
    if (
        isinstance(looped, ast.Call)
        and called_name(looped) == "range"
        and len(looped.args) == 1
    ):
        most = looped.args[0]
        number = most.value if isinstance(most, ast.Constant) else None
        return number > 0 if isinstance(number, int) else None
    return None


def _every(source: FunctionSource, node: ast.AST) -> list[FlowGuard]:
    found = list(_inside_expression(source, node))
    point = source.places[id(node)]
    while True:
        found += _before(point.block, point.index)
        enclosing = source.outer.get(id(point.block))
        if enclosing is None:
            return found
        found += _around(enclosing, point.block, point.index)
        point = enclosing.point


def _around(enclosing: Enclosing, block: Block, index: int) -> Iterator[FlowGuard]:
    """The condition of the statement that holds a block."""
    owner, part = enclosing.owner, enclosing.field
    if isinstance(owner, ast.If) and part in ("body", "orelse"):
        yield FlowGuard(owner.test, part == "body", owner.lineno)
    elif isinstance(owner, ast.While) and part == "body":
        yield FlowGuard(owner.test, True, owner.lineno)
    elif isinstance(owner, ast.For | ast.AsyncFor) and part == "body":
        yield FlowGuard(owner.iter, True, owner.lineno, loop=True)
    elif isinstance(owner, _Try):
        yield from _tried(owner, part, block, index)
    elif isinstance(owner, ast.Match):
        yield from _matched(owner, block)
    elif isinstance(owner, ast.With | ast.AsyncWith):
        yield from _within(owner, block, index)


def _tried(
    owner: ast.Try | ast.TryStar, part: str, block: Block, index: int
) -> Iterator[FlowGuard]:
    if part == "handlers":
        handler = next(h for h in owner.handlers if h.body is block)
        yield _of_error(handler, True)
    for handler in owner.handlers:
        reached = part == "orelse" or (part == "body" and any(map(_may_fail, block[:index])))
        if reached and not _raises(handler.body):
            yield _of_error(handler, False)


def _of_error(handler: ast.ExceptHandler, raised: bool) -> FlowGuard:
    kind = handler.type or ast.Name("Exception", ast.Load())
    says = f"{ast.unparse(kind)} is {'' if raised else 'not '}raised"
    return FlowGuard(kind, raised, handler.lineno, said=says)


def _matched(owner: ast.Match, block: Block) -> Iterator[FlowGuard]:
    case = next((c for c in owner.cases if c.body is block), None)
    if case is not None:
        tested = f" if {ast.unparse(case.guard)}" if case.guard else ""
        says = f"{ast.unparse(owner.subject)} is {ast.unparse(case.pattern)}{tested}"
        yield FlowGuard(owner.subject, True, owner.lineno, said=says)


def _within(owner: ast.With | ast.AsyncWith, block: Block, index: int) -> Iterator[FlowGuard]:
    """A lane has its own arena; `suppress` is a handler that goes on."""
    for item in owner.items:
        call = item.context_expr
        if not isinstance(call, ast.Call):
            continue
        first = call.args[0] if call.args else None
        lane_0 = isinstance(first, ast.Constant) and first.value == 0
        if called_name(call) == _LANE and not lane_0:
            yield FlowGuard(call, True, owner.lineno, said=f"in {ast.unparse(call)}")
        if called_name(call) == _SUPPRESS and any(map(_may_fail, block[:index])):
            kinds = ", ".join(ast.unparse(a) for a in call.args)
            yield FlowGuard(call, True, owner.lineno, said=f"{kinds} is not raised")


def _inside_expression(source: FunctionSource, node: ast.AST) -> Iterator[FlowGuard]:
    """Operands that are not reached, and comprehensions, in the statement of the node."""
    point = source.places[id(node)]
    for outer in ast.walk(point.block[point.index]):
        if isinstance(outer, ast.stmt) and outer is not point.block[point.index]:
            continue
        if isinstance(outer, ast.IfExp):
            for part, holds in ((outer.body, True), (outer.orelse, False)):
                if _holds_node(part, node):
                    yield FlowGuard(outer.test, holds, outer.lineno)
        elif isinstance(outer, ast.BoolOp):
            number = next((n for n, v in enumerate(outer.values) if _holds_node(v, node)), 0)
            holds = isinstance(outer.op, ast.And)
            for value in outer.values[:number]:
                yield FlowGuard(value, holds, outer.lineno)
        elif isinstance(outer, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            yield from _comprehended(outer, node)


def _comprehended(
    outer: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, node: ast.AST
) -> Iterator[FlowGuard]:
    for part in outer.generators:
        if _holds_node(part.iter, node) or part.iter is node:
            return
        if not _holds_node(outer, node):
            return
        yield FlowGuard(part.iter, True, outer.lineno, loop=True)
        for test in part.ifs:
            if _holds_node(test, node):
                return
            yield FlowGuard(test, True, outer.lineno)


def _holds_node(part: ast.AST, node: ast.AST) -> bool:
    return any(n is node for n in ast.walk(part))


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
            else:
                yield from _ends_within(statement)
        elif isinstance(statement, ast.Assert):
            yield FlowGuard(statement.test, True, statement.lineno, fatal=True)
        elif isinstance(statement, _Try):
            for handler in statement.handlers:
                if terminates(handler.body) and not _raises(handler.body):
                    yield _of_error(handler, False)
            yield from _ends_within(statement)
        else:
            yield from _ends_within(statement)


def _ends_within(statement: ast.stmt) -> Iterator[FlowGuard]:
    """Ends that a compound statement holds deeper down, by the condition next to them."""
    todo: list[tuple[ast.AST, FlowGuard | None, bool]] = [(statement, None, False)]
    while todo:
        node, guard, looping = todo.pop()
        leaves = isinstance(node, ast.Return) or (
            isinstance(node, ast.Continue | ast.Break) and not looping
        )
        if leaves and guard is not None:
            yield guard
        if isinstance(node, ast.expr | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        looping = looping or isinstance(node, ast.For | ast.AsyncFor | ast.While)
        for name, child in _children(node):
            todo.append((child, _denied(node, name) or guard, looping))


def _children(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
                yield name, child


def _denied(node: ast.AST, part: str) -> FlowGuard | None:
    """The condition that must not hold, so that a part of a statement is not entered."""
    if isinstance(node, ast.If):
        return FlowGuard(node.test, part != "body", node.lineno)
    if isinstance(node, ast.For | ast.AsyncFor) and part == "body":
        says = f"no item of {ast.unparse(node.iter)}"
        return FlowGuard(node.iter, False, node.lineno, said=says)
    if isinstance(node, ast.While) and part == "body":
        return FlowGuard(node.test, False, node.lineno)
    if isinstance(node, ast.Match):
        says = f"{ast.unparse(node.subject)} is of another case"
        return FlowGuard(node.subject, False, node.lineno, said=says)
    return None


def _may_fail(statement: ast.stmt) -> bool:
    """Whether a statement can raise: all but the plainest can."""
    if isinstance(statement, ast.Pass):
        return False
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return False
    plain = isinstance(statement, ast.Assign) and all(
        isinstance(n, _SIMPLE) for n in ast.walk(statement) if n is not statement
    )
    return not plain


def _raises(block: Block) -> bool:
    return isinstance(block[-1], ast.Raise)
