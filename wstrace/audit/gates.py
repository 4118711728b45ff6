"""What leaves a reservation out: conditions that it is under and the request is not."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from wstrace.audit.flow import expanded, metadata, parts, plain, unlocked
from wstrace.audit.guards import FlowGuard
from wstrace.audit.reaching import Phase, WayIn
from wstrace.audit.related import Placed
from wstrace.slicer.syntax import FunctionSource

# vLLM 0.13.0 to 0.33.0: settings of the scheduler and the cache that change which steps there
# are. A reservation behind one of them is missing where it is off.
# matches: "scheduler_config.enable_chunked_prefill"
_OF_THE_SCHEDULER: Final = re.compile(
    r"scheduler_config\.\w+|enable_chunked_prefill|enable_prefix_caching|speculative_config"
    r"|max_num_batched_tokens"
)


def gates(ways: Sequence[WayIn]) -> list[str]:
    """Conditions on the scheduler's settings that lie on every way."""
    found = [
        [text for source, guard in way.guards for text in _of_guard(source, guard)]
        for way in ways
    ]
    shared = found[0] if found else []
    return [text for text in shared if all(text in other for other in found)]


def thresholds(tests: Iterable[ast.expr]) -> frozenset[str]:
    """What conditions compare with."""
    compared = (n for test in tests for n in ast.walk(test) if isinstance(n, ast.Compare))
    return frozenset(ast.unparse(c) for n in compared for c in (n.left, *n.comparators))


def open_gate(gate: str, compared: frozenset[str]) -> bool:
    """Whether a gate is closed only where the request cannot be made: without chunked prefill
    and prefix caching no request has computed tokens, and a budget below a threshold lets none
    through that the request itself compares with the same threshold."""
    test = ast.parse(gate, mode="eval").body
    whole = isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And)
    parts = test.values if isinstance(test, ast.BoolOp) and whole else [test]
    return all(_open_part(part, compared) for part in parts)


def _open_part(part: ast.expr, compared: frozenset[str]) -> bool:
    text = ast.unparse(part)
    if isinstance(part, ast.BoolOp) and isinstance(part.op, ast.Or):
        return "enable_chunked_prefill" in text and "enable_prefix_caching" in text
    if isinstance(part, ast.Compare) and "max_num_batched_tokens" in text:
        return ast.unparse(part.comparators[0]) in compared
    return isinstance(part, ast.Call) and text.endswith("is_workspace_manager_initialized()")


def left_out(
    shared: Sequence[frozenset[str]], serving: Placed, reserved: Placed, more: Sequence[str]
) -> str:
    """A condition that leaves the reservation out where the request is still made, or ''.
    `shared` are the request's own conditions on each way, `more` those of all its callers.

    Every way to it that is in time counts: one without a condition is enough. That there is no
    metadata or no lock yet is the phase's own, and where a condition raises, nothing is served.
    """
    compared = thresholds(g.test for w in serving.ways for _, g in w.guards)
    asks = {n.id for a in reserved.site.args for n in ast.walk(a) if isinstance(n, ast.Name)}
    own = reserved.site.place.source
    first = ""
    for way in reserved.ways:
        if way.phase is Phase.STEP or way.late:
            continue
        found = (
            text
            for source, guard in way.guards
            for text in _lacking(source, guard, asks if source is own else set(), compared)
            if text.plain not in more and not all(text.plain in each for each in shared)
        )
        lacks = next(found, None)
        if lacks is None:
            return ""
        first = first or lacks.text
    return first


def on_ways(placed: Placed) -> list[frozenset[str]]:
    """The conditions on each way to a request, in one spelling."""
    return [
        frozenset(plain(t, h) for s, g in w.guards for t, h in parts(s, g)) for w in placed.ways
    ]


def calls_super(node: ast.AST, base: str, method: str) -> bool:
    """Whether a method calls the one that it replaces."""
    texts = [ast.unparse(n.func) for n in ast.walk(node) if isinstance(n, ast.Call)]
    return any(
        t.endswith(f".{method}") and (t.startswith("super(") or base in t) for t in texts
    )


@dataclass(frozen=True)
class _Lacking:
    """A condition in the source's words, and in one spelling."""

    text: str
    plain: str


def _lacking(
    source: FunctionSource, guard: FlowGuard, asks: set[str], compared: frozenset[str]
) -> Iterator[_Lacking]:
    """The parts of a guard that can leave a line out while requests are served."""
    if guard.fatal or unlocked(guard):
        return
    for test, holds in parts(source, guard):
        alone = replace(guard, test=test, holds=holds)
        if _of_its_phase(source, guard, alone, asks) or _open_part(test, compared):
            continue
        yield _Lacking(alone.text, guard.said or plain(test, holds))


def _of_its_phase(
    source: FunctionSource, guard: FlowGuard, part: FlowGuard, asks: set[str]
) -> bool:
    """Whether a part of a guard leaves no reservation out: the phase's own condition, or what
    only says that there is something to ask for (`if specs: request(*specs)`)."""
    if guard.said:
        return False
    if guard.loop:
        return _gives_specs(source, guard, asks)
    asked = guard.holds and isinstance(guard.test, ast.Name) and guard.test.id in asks
    return asked or metadata(part, source) is not None or unlocked(part)


def _gives_specs(source: FunctionSource, loop: FlowGuard, asks: set[str]) -> bool:
    """Whether the request asks for the loop's own items: where there is none, nothing is
    reserved of what the slicer has in its formula."""
    for node in ast.walk(source.node):
        if isinstance(node, ast.For) and node.iter is loop.test:
            targets = {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
            return bool(targets & asks)
    return False


def _of_guard(source: FunctionSource, guard: FlowGuard) -> Iterator[str]:
    """The scheduler's settings that a condition compares, or takes as yes or no."""
    test, holds = expanded(source, guard.test), guard.holds
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, holds = test.operand, not holds
    parts = test.values if isinstance(test, ast.BoolOp) else [test]
    plain = [p for p in parts if isinstance(p, ast.Name | ast.Attribute | ast.Compare)]
    set_by_config = any(_OF_THE_SCHEDULER.search(ast.unparse(part)) for part in plain)
    if set_by_config and metadata(guard, source) is None:
        text = ast.unparse(test)
        yield text if holds else f"not ({text})"


def config_gates(condition: str, truth: Callable[[ast.expr], bool | None]) -> bool | None:
    """Whether a match's condition holds, where it is a setting that `truth` knows."""
    try:
        test = ast.parse(condition, mode="eval").body
    except SyntaxError:
        return None
    return truth(test)
