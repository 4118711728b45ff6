"""Whether a reservation is at least a request, under the same numbers.

Each way that conditions go is a formula over constants and the scheduler's quantities. For each
configuration of `CONFIGS` the largest request is found by the interval search over the
quantities' ranges, and compared with what was reserved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal

from wstrace.audit.flow import CALLED, decided
from wstrace.audit.sample_configs import (
    CONFIGS,
    Config,
    allows,
    canonical,
    compared,
    stressed_by,
    told,
    value,
)
from wstrace.bounds.limits import joint_limits, role_limits
from wstrace.expr import tree
from wstrace.expr.expression import Expression, parse
from wstrace.expr.interval import interval
from wstrace.expr.maximum import Joint, maximise
from wstrace.expr.tree import FormulaError, Node, Variable
from wstrace.slicer.ledger import SlicedLeaf
from wstrace.slicer.static import AskedSpecs, Piece, SpecShape

Kind = Literal["covered", "short", "open"]
BUDGET: Final = 4000
MAX_WAYS: Final = 24
# Roles that count the rows of a step.
_ROWS: Final = frozenset(
    ("num_padded_tokens", "num_scheduled_tokens", "num_decode_tokens", "num_decode_rows")
)


# Quantities of vLLM 0.13.0 to 0.33.0 that count tokens of earlier steps.
CACHED: Final = frozenset(("num_computed_tokens", "seq_len", "total_seq_len"))


@dataclass(frozen=True)
class Covered:
    """`covered`: the reservation is at least the request in every configuration. `short`: it is
    smaller in one, which `example` gives. `open`: one of the two could not be followed."""

    kind: Kind
    why: str
    example: str = ""
    always: bool = False


@dataclass(frozen=True)
class Case:
    """Bytes where conditions go one way: `taken` are they, in one spelling, with their side.
    Of `callers`, alternatives of who calls, one is enough for a reservation."""

    size: Node
    taken: frozenset[tuple[str, bool]] = frozenset()

    def contradicts(self, other: frozenset[tuple[str, bool]]) -> bool:
        """Whether a condition goes another way there."""
        return any((text, not side) in other for text, side in self.taken)

    def possible(self, config: Config) -> bool:
        """Whether a configuration's numbers let conditions go this way."""
        return all(allows(text, side, config) for text, side in self.taken)


@dataclass(frozen=True)
class Sized:
    """A request's ways in bytes over canonical names; `roles` are those that are drivers.

    `open` says what could not be followed; then the ways hold for the rest.
    """

    cases: tuple[Case, ...]
    roles: frozenset[str]
    open: str = ""

    @cached_property
    def ways(self) -> tuple[Node, ...]:
        """The formulas of all cases."""
        return tuple(dict.fromkeys(case.size for case in self.cases))

    @property
    def fixed(self) -> bool:
        """Whether its bytes follow no quantity of a step."""
        return not self.roles and not self.open


def sized(asked: AskedSpecs, profiled: bool = False) -> Sized:
    """A sliced request with its names in one spelling.

    `profiled`: it is made in the profile run, whose step has max_num_batched_tokens tokens: as
    many rows has a tensor that nothing else is known of.
    """
    names: dict[str, Node] = {}
    roles: set[str] = set()
    left_open = asked.stopped or ""
    for leaf in asked.leaves.values():
        names[leaf.name] = Variable(_name(leaf))
        if profiled and leaf.kind == "unbound" and leaf.source.endswith(".shape[0]"):
            names[leaf.name] = Variable("max_num_batched_tokens")
        elif leaf.role:
            roles.add(leaf.role)
        elif leaf.kind == "unbound" and not left_open:
            left_open = leaf.why or f"{leaf.name} is not bound"
    cases = [Case(tree.Const(0))]
    for piece in asked.pieces:
        each = _cases(asked, piece) or [Case(tree.Const(0))]
        pairs = ((a, b) for a in cases for b in each if not a.contradicts(b.taken))
        cases = list(
            dict.fromkeys(
                Case(tree.simplified("+", a.size, b.size), a.taken | b.taken) for a, b in pairs
            )
        )
        if len(cases) > MAX_WAYS:
            left_open = left_open or f"more than {MAX_WAYS} combinations of conditions"
            cases = cases[:MAX_WAYS]
    named = (Case(tree.substitute(c.size, names), c.taken) for c in cases)
    return Sized(tuple(dict.fromkeys(named)), frozenset(roles), left_open)


def _cases(asked: AskedSpecs, piece: Piece) -> list[Case]:
    """An argument's ways with their conditions in one spelling."""
    found = []
    for way, taken in zip(piece.ways, piece.taken, strict=True):
        known = [
            (asked.conditions[on], side, isinstance(on, tuple) and on[0] == "caller")
            for on, side in taken
            if on in asked.conditions
        ]
        said = frozenset(
            text
            for (source, node), side, caller in known
            for text in decided(source, node, side, caller, asked.followed)
        )
        found.append(Case(_bytes(way), said))
    return list(dict.fromkeys(found))


def _name(leaf: SlicedLeaf) -> str:
    if leaf.role:
        return leaf.role
    return canonical(leaf.name, leaf.why.startswith("assumed constant"))


def _bytes(specs: Sequence[SpecShape]) -> Node:
    total: Node = tree.Const(0)
    for spec in specs:
        total = tree.simplified("+", total, spec.bytes)
    return total


def widest(reserved: Sized) -> Sized:
    """A reservation without its conditions, so that its largest way counts: for a worst case
    that has no conditions of its own."""
    return replace(reserved, cases=tuple(Case(case.size) for case in reserved.cases))


def by_rule(formula: str) -> Sized:
    """A known site's worst case, which is over config names alone."""
    return Sized((Case(parse(formula).root),), frozenset())


def covers(
    reserved: Sized,
    asked: Sized,
    rows: str = "",
    known: frozenset[tuple[str, bool]] = frozenset(),
) -> Covered:
    """Whether `reserved` is at least `asked`.

    Each way of the request must fit into every way of the reservation that its conditions, and
    those `known` to hold where it is made, leave possible. `rows` names a number of the config
    that no count of the step's tokens exceeds there.
    """
    same = reserved.cases == asked.cases and len(asked.ways) == 1
    if same and not asked.open and not reserved.open:
        return Covered("covered", "the same formula", always=True)
    if asked.open:
        return Covered("open", asked.open)
    seen: set[Case] = set()
    for config in CONFIGS:
        found = _compared(reserved, asked, config, rows, known, seen)
        if found is not None:
            return found
    for beyond in stressed(reserved, asked):
        found = _compared(reserved, asked, beyond, rows, known, seen)
        if found is not None and found.kind == "short":
            return found
    if any(case not in seen and not case.contradicts(known) for case in asked.cases):
        return Covered("open", "the reservation's conditions are not those of the request")
    if reserved.open:
        return Covered("open", f"the reservation: {reserved.open}")
    return Covered("covered", f"the largest request fits, in {len(CONFIGS)} configurations")


def _compared(
    reserved: Sized,
    asked: Sized,
    config: Config,
    rows: str,
    known: frozenset[tuple[str, bool]],
    seen: set[Case],
) -> Covered | None:
    """None where it fits in this configuration; `seen` gathers what was compared."""
    try:
        sizes = _possible(reserved, config)
        needs = {way: _at_most(way, asked.roles, config, rows) for way in asked.ways}
        for case in asked.cases:
            if not case.possible(config) or case.contradicts(known):
                continue
            need, at = needs[case.size]
            least, when = _least(reserved, sizes, case.taken | known, config)
            if least is None:
                continue  # this config has no such layer
            held = least
            seen.add(case)
            if need > held:
                break
        else:
            return None
    except (FormulaError, ValueError) as error:
        return Covered("open", str(error).splitlines()[0])
    if reserved.open:
        return Covered("open", f"the reservation: {reserved.open}")
    said = f"{need:,} bytes asked, {held:,} reserved"
    told = f" where {when}" if when else ""
    return Covered("short", said + told, _shown(config, at))


def _possible(reserved: Sized, config: Config) -> dict[Node, int]:
    """Bytes of each way of a reservation that this configuration can go: one that divides by
    zero is not taken."""
    found = {}
    for way in reserved.ways:
        with suppress(FormulaError):
            found[way] = _at_most(way, reserved.roles, config)[0]
    if not found:
        raise FormulaError("the reservation has no value", "")
    return found


def _least(
    reserved: Sized,
    sizes: Mapping[Node, int],
    taken: frozenset[tuple[str, bool]],
    config: Config,
) -> tuple[int | None, str]:
    """The smallest reservation that these conditions leave possible, None where they leave
    none, and its own conditions. Of calls by several callers the largest counts: each of them
    is made."""
    grouped: dict[frozenset[tuple[str, bool]], int] = {}
    for case in reserved.cases:
        possible = case.size in sizes and case.possible(config)
        if possible and not case.contradicts(taken):
            apart = frozenset(c for c in case.taken if not c[0].startswith(CALLED))
            grouped[apart] = max(grouped.get(apart, 0), sizes[case.size])
    if not grouped:
        return None, ""
    conditions, least = min(grouped.items(), key=lambda pair: (pair[1], sorted(pair[0])))
    told = sorted(text if side else f"not ({text})" for text, side in conditions)
    return least, " and ".join(told) if len(grouped) > 1 else ""


def stressed(reserved: Sized, asked: Sized) -> Iterator[Config]:
    """Configurations on both sides of each cap in the two formulas and their conditions: a
    constant beside a number, which the usual configurations may all be below, or above."""
    roles = reserved.roles | asked.roles
    found: dict[int, set[str]] = {}
    for way in (*reserved.ways, *asked.ways):
        for cap, beside in _caps(way):
            found.setdefault(cap, set()).update(beside)
    for case in (*reserved.cases, *asked.cases):
        for number, name in compared(text for text, _ in case.taken):
            found.setdefault(number, set()).add(name)
    for cap, names in sorted(found.items()):
        yield from stressed_by(cap, sorted(names - roles), bool(names & roles))


def _caps(way: Node) -> Iterator[tuple[int, frozenset[str]]]:
    """Each constant of a min or max, with the names that it stands beside."""
    for node in tree.walk(way):
        if isinstance(node, tree.Op) and node.op in ("min", "max"):
            yield from (
                (a.value, tree.names(node)) for a in node.args if isinstance(a, tree.Const)
            )


def _shown(config: Config, at: Mapping[str, int]) -> str:
    shown = ("max_model_len", "max_num_batched_tokens", "max_num_seqs")
    names = [f"{name} {config[name]}" for name in shown]
    return ", ".join([*names, *(f"{name} {number}" for name, number in sorted(at.items()))])


def _at_most(
    way: Node, roles: frozenset[str], config: Config, rows: str = ""
) -> tuple[int, dict[str, int]]:
    """The largest value of one way in one configuration, and the quantities there."""
    names = tree.names(way)
    constants = {name: value(name, config) for name in names - roles}
    used = sorted(names & roles)
    if not used:
        return tree.evaluate(way, constants), {}
    known = role_limits(config)
    ranges = {}
    for role in used:
        limit = known[role]
        if limit.maximum is None:
            raise FormulaError(f"{role} needs {', '.join(limit.needs)}", "")
        most = min(limit.maximum, config[rows]) if rows and role in _ROWS else limit.maximum
        ranges[role] = (limit.minimum, max(limit.minimum, most))
    joint = [Joint.of(text, 0) for text in joint_limits(used, config)]
    found = maximise(Expression(way), {**config, **constants}, ranges, joint, BUDGET)
    return found.value, found.at


def floor_equals_ceiling(size: Sized) -> bool:
    """Whether the smallest and the largest step ask for the same, in every configuration."""
    for config in CONFIGS:
        known = role_limits(config)
        for way in size.ways:
            names = tree.names(way)
            box = {}
            for name in names:
                limit = known.get(name) if name in size.roles else None
                exact = value(name, config)
                top = exact if limit is None else limit.maximum or 0
                box[name] = (exact if limit is None else limit.minimum, top)
            low, high = interval(way, box)
            if low != high:
                return False
    return True


def largest_in_profile(size: Sized) -> bool:
    """Whether the step with the most tokens asks for the most, as far as the formula tells: one
    that follows cached tokens, or falls with the tokens of the step, does not."""
    if size.open:
        return not any(_subtracts(way) for way in size.ways)
    if not size.roles.isdisjoint(CACHED):
        return False
    for config in CONFIGS:
        known = role_limits(config)
        for way in size.ways:
            names = tree.names(way)
            at = {n: known[n].maximum if n in size.roles else value(n, config) for n in names}
            if any(number is None for number in at.values()):
                continue
            numbers = {name: number for name, number in at.items() if number is not None}
            with suppress(FormulaError):
                if _at_most(way, size.roles, config)[0] > tree.evaluate(way, numbers):
                    return False
    return True


def _subtracts(way: Node) -> bool:
    """Whether more of something that the config does not give makes a size smaller."""
    for node in tree.walk(way):
        falling = isinstance(node, tree.Op) and node.op in ("-", "//", "%", "ceil_div")
        below = tree.names(node.args[1]) if isinstance(node, tree.Op) and falling else ()
        if any(told(name, CONFIGS[0]) is None for name in below):
            return True
    return False


def largest(size: Sized, numbers: Config) -> tuple[tuple[str, ...], int | None]:
    """The largest request under the numbers of one deployment; else the names it needs.

    No value is made up here: a name that the deployment does not give is needed.
    """
    known = dict(numbers)
    limits = role_limits(numbers)
    names = frozenset[str]().union(*(tree.names(way) for way in size.ways))
    for name in names - size.roles:
        given = told(name, numbers)
        if given is not None:
            known[name] = given
    needs = {n for n in names - size.roles if n not in known}
    needs |= {n for role in names & size.roles for n in limits[role].needs}
    if needs:
        return tuple(sorted(needs)), None
    try:
        return (), max(_at_most(way, size.roles, known)[0] for way in size.ways)
    except FormulaError:
        return (), None
