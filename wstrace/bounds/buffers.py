"""The buffers of a request, as a rule's formula counts them: one `round256(...)` each.

A total can be given by other buffers than those that were asked for; a rule is held against
each buffer where a trace has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from wstrace.expr import tree
from wstrace.expr.expression import Expression
from wstrace.expr.tree import Node, Op
from wstrace.trace.records import Request
from wstrace.vllm.arena import aligned

_MOST: Final = 64


def same_buffers(formula: Expression, values: Mapping[str, int], request: Request) -> bool:
    """True where the addends of `formula` at `values` are the buffers of `request`, in any
    order, or where `request` has no buffers to compare."""
    if not request.specs:
        return True
    asked = [aligned(spec.bytes) for spec in request.specs]
    given = list(_buffers(formula.root, values))
    return sorted(filter(None, given)) == sorted(filter(None, asked))


def _buffers(node: Node, values: Mapping[str, int]) -> Iterator[int]:
    if isinstance(node, Op) and node.op == "+":
        for addend in node.args:
            yield from _buffers(addend, values)
        return
    if isinstance(node, Op) and node.op == "max":
        yield from _buffers(max(node.args, key=lambda n: tree.evaluate(n, values)), values)
        return
    times, single = _repeated(node, values)
    size = tree.evaluate(single, values)
    yield from [aligned(size)] * times


def _repeated(node: Node, values: Mapping[str, int]) -> tuple[int, Node]:
    """`2 * round256(x)` are two buffers, `min(1, n) * round256(x)` one or none."""
    if isinstance(node, Op) and node.op == "*":
        for times, single in (node.args, node.args[::-1]):
            if isinstance(single, Op) and single.op == "round256":
                count = tree.evaluate(times, values)
                if 0 <= count <= _MOST:
                    return count, single
    return 1, node
