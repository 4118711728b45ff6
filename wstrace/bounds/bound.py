"""What a site can ever need: the one worst-case type, and the maximum of a formula."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from wstrace.bounds.limits import RoleLimit
from wstrace.errors import WstraceError
from wstrace.expr import expression, tree
from wstrace.expr.expression import Expression
from wstrace.expr.maximum import Joint, maximise
from wstrace.expr.tree import Const, Node, Op
from wstrace.reserve.schema import Grade, SiteReserve
from wstrace.vllm.limits import NUMBERS

# vLLM 0.13.0 to 0.33.0: flags that a person can lower; the names are rows of
# wstrace.vllm.limits.
_LEVERS: Final = (
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_seqs",
    "num_speculative_tokens",
    "max_cudagraph_capture_size",
    "tensor_parallel_size",
)
FLAGS: Final[Mapping[str, str]] = {n: NUMBERS[n].flag.partition(" ")[0] for n in _LEVERS}
"""The flags that move a bound, the one that is easiest to lower first."""


@dataclass(frozen=True)
class CallerWay:
    """One of several ways to a site: who called, with which objects, and what that can need.

    `callers` are the calls that the formula follows, innermost first, as `file:line:function`;
    `types` the classes of the objects that it reads. `formula` is over limits and constants;
    `bytes` is its maximum, `observed` the largest request on this way.
    """

    callers: tuple[str, ...]
    types: tuple[str, ...]
    formula: str
    bytes: int
    observed: int


@dataclass(frozen=True)
class Bound:
    """The worst case of one site in bytes, from a trace, a log, or a rule and numbers given.

    `bytes` is None while `needs` names limits that are missing. `formula` is over limit names
    and `constants`, and gives `bytes`; `driver_formula` is one request's bytes over `drivers`,
    each with its limit expression, `lowest` value and `joint` limits (<= 0). `at` is where the
    worst case lies. `why` says what stands behind the grade, `assumed` which numbers nobody
    gave. `observed` is the largest request seen. `closed`: `formula` holds under other limits
    too; else `driver_formula` must be maximised again. `contradiction` says why the numbers
    cannot be those of the engine that made a log; then `bytes` is None. `ways`: who
    reached the site, where its formula depends on that; `bytes` is the largest of theirs.
    `refuted`: a request that was seen contradicts the rule `known_site`, in words; the bound is
    then not that rule's.
    """

    bytes: int | None = None
    grade: Grade = "observed"
    formula: str | None = None
    driver_formula: str | None = None
    constants: dict[str, int] = field(default_factory=dict)
    drivers: dict[str, str] = field(default_factory=dict)
    lowest: dict[str, int] = field(default_factory=dict)
    joint: tuple[str, ...] = ()
    at: dict[str, int] = field(default_factory=dict)
    why: str = ""
    needs: tuple[str, ...] = ()
    lever: dict[str, str] | None = None
    known_site: str | None = None
    observed: int = 0
    closed: bool = False
    assumed: tuple[str, ...] = ()
    contradiction: str = ""
    ways: tuple[CallerWay, ...] = ()
    refuted: str = ""


@dataclass(frozen=True)
class Goal:
    """What to maximise: a formula over drivers (name to role limit), constants and limits."""

    formula: str
    drivers: Mapping[str, RoleLimit]
    constants: dict[str, int] = field(default_factory=dict)
    joint: tuple[str, ...] = ()


def worst_case(goal: Goal, numbers: Mapping[str, int], grade: Grade, why: str) -> Bound:
    """The maximum of `goal` over the whole ranges of its drivers, under its joint limits.

    Raises WstraceError where a limit is missing or the maximum does not exist.
    """
    parsed = folded(expression.parse(goal.formula))
    known = {**numbers, **goal.constants}
    ranges = {name: _range(limit) for name, limit in goal.drivers.items()}
    ranges = {name: span for name, span in ranges.items() if name in parsed.names}
    joint = [Joint.of(text, 0) for text in goal.joint]
    found = maximise(parsed, known, ranges, joint)
    limits = {name: goal.drivers[name].expression for name in sorted(ranges)}
    return Bound(
        bytes=found.value,
        grade=grade,
        formula=_closed(parsed, limits, known, found.value),
        driver_formula=str(parsed),
        constants={k: v for k, v in goal.constants.items() if k in parsed.names},
        drivers=limits,
        lowest={n: low for n, (low, _) in sorted(ranges.items()) if low},
        joint=goal.joint,
        at=dict(sorted(found.at.items())),
        why=why if found.exact else f"{why} (an upper bound: the search was cut short)",
    )


def folded(formula: Expression) -> Expression:
    """The same formula with equal buffers counted: `x + x` becomes `2 * x`."""
    counts = Counter(_summands(formula.root))
    if all(count == 1 for count in counts.values()):
        return formula
    parts = [node if n == 1 else tree.make("*", Const(n), node) for node, n in counts.items()]
    total = parts[0]
    for part in parts[1:]:
        total = tree.make("+", total, part)
    return Expression(total)


def _summands(node: Node) -> Iterator[Node]:
    if isinstance(node, Op) and node.op == "+":
        for arg in node.args:
            yield from _summands(arg)
    else:
        yield node


def _range(limit: RoleLimit) -> tuple[int, int]:
    if limit.maximum is None:
        raise WstraceError(f"{limit.role} needs {', '.join(limit.needs)}", "give its value")
    return limit.minimum, max(limit.minimum, limit.maximum)


def _closed(
    parsed: Expression,
    limits: Mapping[str, str],
    known: Mapping[str, int],
    value: int,
) -> str:
    """The formula with every driver at its limit, if the maximum lies there; else as it is."""
    closed = parsed.substitute(limits)
    try:
        return str(closed) if closed.evaluate(known) == value else str(parsed)
    except WstraceError:
        return str(parsed)


def lever_of(formula: str) -> dict[str, str] | None:
    """The first flag of vLLM that the closed formula depends on."""
    names = expression.parse(formula).names
    for name, flag in FLAGS.items():
        if name in names:
            return {"flag": flag, "effect": "the bytes follow it"}
    return None


def reserve_of(bound: Bound, site: str = "", observed: int = 0) -> SiteReserve:
    """The bound as a reserve config's site: the formula that holds under other limits."""
    formula = bound.formula if bound.closed else bound.driver_formula
    return SiteReserve(
        site=site,
        grade=bound.grade,
        bytes=bound.bytes or 0,
        cover="bound" if bound.grade != "observed" else "observed",
        observed=observed or bound.observed,
        formula=formula,
        constants=dict(bound.constants),
        drivers={} if bound.closed else dict(bound.drivers),
        lowest={} if bound.closed else dict(bound.lowest),
        joint=[] if bound.closed else list(bound.joint),
        why=bound.why,
    )
