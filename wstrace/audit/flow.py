"""What a condition says: of the attention metadata, of the lock, of a parameter."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Final, Literal

from wstrace.audit.guards import FlowGuard
from wstrace.slicer.syntax import FunctionSource, parameters

Metadata = Literal["absent", "present"]

# How vLLM 0.13.0 to 0.33.0 names what a profile run has not: `attn_metadata`, `swa_metadata`.
# The parts of one (`prefill_metadata`) may be absent in a real step too.
# matches: "attn_metadata"
_METADATA: Final = re.compile(r"(^|_|\.)(attn|attention|swa|forward|layer)?_?metadata(_raw)?$")
# matches: "prefill_metadata"
_PART: Final = re.compile(r"(prefill|decode|chunk\w*|context)_metadata$")
# matches: "is_profile_run"
_PROFILING: Final = re.compile(r"^(is_|in_)?(profil\w*|dummy\w*)(_run)?$")

# matches: "vllm_config.parallel_config.rank"
_HELD_BY: Final = re.compile(r"\b(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])")


def plain(test: ast.expr, holds: bool) -> str:
    """A condition in one spelling, whoever holds its names: `self.x` and `layer.x` are x."""
    text = _HELD_BY.sub("", ast.unparse(test))
    return text if holds else f"not ({text})"


def decided(
    source: FunctionSource,
    node: ast.AST,
    side: bool,
    caller: bool,
    followed: Sequence[FunctionSource] = (),
) -> Iterator[tuple[str, bool]]:
    """The condition of a slice that stands at `node` in one spelling, and whether it holds on
    this side of it: as it is written, with the function's names written out, and as a call in
    `followed` gives its parameter."""
    if isinstance(node, ast.ExceptHandler):
        yield f"{ast.unparse(node.type) if node.type else 'Exception'} is raised", not side
    elif caller:
        place = f"{getattr(node, 'lineno', 0)}:{getattr(node, 'col_offset', 0)}"
        yield f"{CALLED}{place} of {source.file}", side
    else:
        test = node.test if isinstance(node, ast.If | ast.IfExp) else node
        assert isinstance(test, ast.expr)
        yield _positive(test, side)
        written = expanded(source, test)
        yield _positive(written, side)
        given = _given(source, written, followed) if isinstance(written, ast.Name) else None
        if given is not None:
            yield _positive(given, side)


def _given(
    source: FunctionSource, name: ast.Name, followed: Sequence[FunctionSource]
) -> ast.expr | None:
    """What the one call of a followed function gives for its parameter."""
    own = [a for a in parameters(source.node) if a not in ("self", "cls")]
    if name.id not in own or source.bindings(name.id) != 1 or not source.name:
        return None
    calls = [
        (caller, n)
        for caller in followed
        for n in ast.walk(caller.node)
        if isinstance(n, ast.Call) and ast.unparse(n.func).rpartition(".")[2] == source.name
    ]
    if len(calls) != 1:
        return None
    caller, call = calls[0]
    given = dict(zip(own, call.args, strict=False)) | {k.arg: k.value for k in call.keywords}
    value = given.get(name.id)
    return None if value is None else expanded(caller, value)


def _positive(written: ast.expr, side: bool) -> tuple[str, bool]:
    """A condition without a not, and the side on which that holds."""
    while isinstance(written, ast.UnaryOp) and isinstance(written.op, ast.Not):
        written, side = written.operand, not side
    if isinstance(written, ast.Compare) and len(written.ops) == 1:
        positive = _POSITIVE.get(type(written.ops[0]))
        if positive is not None:
            written, side = (
                ast.Compare(written.left, [positive()], written.comparators),
                not side,
            )
    return plain(written, True), side


CALLED: Final = "called at "
_POSITIVE: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.IsNot: ast.Is,
    ast.NotEq: ast.Eq,
    ast.NotIn: ast.In,
    ast.LtE: ast.Gt,
    ast.GtE: ast.Lt,
}


def parts(source: FunctionSource, guard: FlowGuard) -> Iterator[tuple[ast.expr, bool]]:
    """Each condition that a guard needs, alone, and whether it must hold; names that the
    function assigns once are written out."""
    if not guard.plain:
        yield guard.test, guard.holds
        return
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
    return _said(expanded(source, guard.test), guard.holds) if guard.plain else None


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


# vLLM 0.13.0 to 0.33.0: how layers count the tokens of a step.
# matches: "hidden_states.shape[0]"
_TOKENS: Final = re.compile(r"(\.shape\[0\]|\.size\(0\)|\bnum_(\w+_)?tokens|\bnum_rows|^M)$")


def few_tokens(source: FunctionSource, guard: FlowGuard) -> bool:
    """Whether a line runs only in a step that has few tokens: the profile run has the most."""
    if not guard.plain:
        return False
    for test, holds in parts(source, guard):
        if not (isinstance(test, ast.Compare) and len(test.ops) == 1):
            continue
        sides = [ast.unparse(expanded(source, n)) for n in (test.left, test.comparators[0])]
        counted = [bool(_TOKENS.search(s)) and "max" not in s for s in sides]
        below = isinstance(test.ops[0], ast.Lt | ast.LtE)
        above = isinstance(test.ops[0], ast.Gt | ast.GtE)
        left, right = counted
        if left != right and (below or above) and "max_num" not in "".join(sides):
            return (below == left) == holds
    return False


def unlocked(guard: FlowGuard) -> bool:
    """Whether the line runs only while the workspace is not locked."""
    if not guard.plain:
        return False
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
    if not (guard.plain and isinstance(test, ast.Compare) and len(test.ops) == 1):
        return ""
    right = test.comparators[0]
    if not (isinstance(right, ast.Constant) and right.value is None):
        return ""
    if isinstance(test.ops[0], ast.Is) != holds or not isinstance(test.left, ast.Name):
        return ""
    declared = source.node.args
    names = {a.arg for a in (*declared.args, *declared.kwonlyargs, *declared.posonlyargs)}
    return test.left.id if test.left.id in names else ""
