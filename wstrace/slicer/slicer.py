"""From a live get_simultaneous call to a closed formula for its bytes.

Runs in the worker's slow path. It reads source, frames and plain attributes; it runs none
of the worker's code and never raises into it. Parsed sources, call places and class checks
are cached (bounded); values are read anew for every request.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from wstrace.expr import tree
from wstrace.expr.expression import MAX_LENGTH
from wstrace.expr.tree import Node, simplified
from wstrace.slicer.evaluator import Evaluator
from wstrace.slicer.ledger import Ledger, SlicedLeaf
from wstrace.slicer.live.callers import Callers
from wstrace.slicer.live.live_world import LiveWorld
from wstrace.slicer.live.way import EVERY_WAY, Way
from wstrace.slicer.values import Stop, forget_way
from wstrace.vllm.arena import aligned

MAX_STATEMENTS = 24
MAX_OTHERS = 24
Spec = tuple[Sequence[int], object]


@dataclass(frozen=True)
class Sliced:
    """The result of slicing one call.

    `formula` gives the request's bytes in the expression language over `leaves`; None when
    the slice could not be closed, then `stopped` says where and why. `statements` are the
    source lines that made the numbers, innermost first, as `file:line: text`.

    Where a condition chooses between shapes, `arms` holds one formula for each way it can go
    and `formula` is their maximum: an observed request equals one of the arms. A formula
    together with `stopped` holds for this request but has an unbound leaf: it is not closed.

    All of it holds for requests on the same `way` only; `others` are further calls of the
    functions on it, as `file:line:function`.
    """

    formula: str | None = None
    leaves: tuple[SlicedLeaf, ...] = ()
    statements: tuple[str, ...] = ()
    stopped: str | None = None
    arms: tuple[str, ...] = ()
    way: Way = EVERY_WAY
    others: tuple[str, ...] = ()


def slice_request(
    frame: types.FrameType, specs: Sequence[Spec], max_callers: int = 4
) -> Sliced:
    """The formula of the request that `frame` is making.

    `frame` is the one that called get_simultaneous, `specs` its actual (shape, dtype)
    arguments. The result gives bytes: the sum over specs of round256(elements * itemsize).
    Checked against `specs`; nothing is raised, whatever goes wrong is in `stopped`.
    """
    ledger = Ledger()
    world = LiveWorld(ledger, max_callers)
    evaluator = Evaluator(ledger, world)
    world.attach(evaluator)
    try:
        found = _attempt(evaluator, world.callers, frame, specs)
        others = tuple(world.callers.others)[:MAX_OTHERS]
        return replace(found, way=world.callers.way(frame), others=others)
    finally:
        evaluator.forget()
        world.forget()


def _attempt(
    evaluator: Evaluator, callers: Callers, frame: types.FrameType, specs: Sequence[Spec]
) -> Sliced:
    """The slice, whatever goes wrong in its words."""
    ledger = evaluator.ledger
    try:
        return _sliced(evaluator, callers, frame, specs)
    except Stop as stop:
        forget_way(stop)
        return Sliced(None, (), _statements(ledger), str(stop))
    except tree.FormulaError as error:
        return Sliced(None, (), _statements(ledger), error.message)
    except RecursionError:
        return Sliced(None, (), _statements(ledger), "the slice is nested too deeply")
    except Exception as error:
        return Sliced(None, (), (), f"internal: {type(error).__name__}: {error}"[:300])


def _sliced(
    evaluator: Evaluator, callers: Callers, frame: types.FrameType, specs: Sequence[Spec]
) -> Sliced:
    ledger = evaluator.ledger
    scope, call = callers.scope(frame, 0)
    ledger.statements[scope.source.line(call)] = None
    if call.keywords:
        raise Stop(scope.where(call), "specs given as keywords")
    nodes = evaluator.request(call, scope)
    unsettle(ledger, scope.source.file + scope.source.qualname)
    return checked(ledger, nodes, _bytes(specs))


_assumed: dict[tuple[str, str, str], int | None] = {}
_MAX_ASSUMED: Final = 4096


def unsettle(ledger: Ledger, site: str) -> None:
    """Dimensions assumed constant are compared with earlier requests of the same site; one
    that has changed is unbound from then on."""
    for name, leaf in ledger.leaves.items():
        if leaf.kind != "constant" or not leaf.why or leaf.value is None:
            continue
        key = (site, leaf.where, leaf.source)
        if key not in _assumed and len(_assumed) >= _MAX_ASSUMED:
            continue
        first = _assumed.setdefault(key, leaf.value)
        if first != leaf.value:
            _assumed[key] = None
            why = f"{leaf.source} is not constant: {leaf.value} here, otherwise before"
            ledger.leaves[name] = replace(leaf, kind="unbound", why=why)


def _bytes(specs: Sequence[Spec]) -> int:
    total = 0
    for shape, dtype in specs:
        size = int(dtype.itemsize)  # type: ignore[attr-defined]
        for dim in shape:
            size *= int(dim)
        total += aligned(size)
    return total


def checked(ledger: Ledger, nodes: list[Node], actual: int) -> Sliced:
    """The result, once one arm gives exactly the bytes that were asked."""
    values = {n: leaf.value for n, leaf in ledger.leaves.items() if leaf.value is not None}
    given = [tree.evaluate(n, values) for n in nodes if tree.names(n) <= set(values)]
    statements = _statements(ledger)
    if not given:
        missing = sorted(frozenset[str]().union(*(tree.names(n) for n in nodes)) - set(values))
        return Sliced(None, (), statements, f"self-check: no value for {', '.join(missing)}")
    if actual not in given:
        worst = max(given)
        stopped = f"self-check: formula gives {worst}, request was {actual}"
        return Sliced(None, (), statements, stopped)
    return _closed(ledger, nodes, statements)


def _closed(ledger: Ledger, nodes: list[Node], statements: tuple[str, ...]) -> Sliced:
    whole = simplified("max", *nodes)
    used = sorted(tree.names(whole))
    leaves = tuple(ledger.leaves[n] for n in used)
    text = tree.text(whole)
    if len(text) > MAX_LENGTH:
        return Sliced(None, (), statements, f"the formula has {len(text)} characters")
    every = tuple(tree.text(n) for n in nodes) if len(nodes) > 1 else ()
    return Sliced(text, leaves, statements, _unbound(leaves), every)


def _unbound(leaves: Sequence[SlicedLeaf]) -> str | None:
    return next((f"{leaf.name}: {leaf.why}" for leaf in leaves if leaf.kind == "unbound"), None)


def _statements(ledger: Ledger) -> tuple[str, ...]:
    return tuple(ledger.statements)[:MAX_STATEMENTS]
