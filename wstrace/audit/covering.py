"""Whether a reservation is at least a request, under the same numbers.

Each way that conditions go is a formula over constants and the scheduler's quantities. For each
configuration of `CONFIGS` the largest request is found by the interval search over the
quantities' ranges, and compared with what was reserved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

from wstrace.audit.sample_configs import CONFIGS, Config, canonical, told, value
from wstrace.bounds.limits import joint_limits, role_limits
from wstrace.expr import tree
from wstrace.expr.expression import Expression, parse
from wstrace.expr.interval import interval
from wstrace.expr.maximum import Joint, maximise
from wstrace.expr.tree import FormulaError, Node, Variable
from wstrace.slicer.ledger import SlicedLeaf
from wstrace.slicer.static import AskedSpecs, SpecShape

Kind = Literal["covered", "short", "open"]
BUDGET: Final = 4000
MAX_WAYS: Final = 24
# Roles that count the rows of a step.
_ROWS: Final = frozenset(
    ("num_padded_tokens", "num_scheduled_tokens", "num_decode_tokens", "num_decode_rows")
)


@dataclass(frozen=True)
class Covered:
    """`covered`: the reservation is at least the request in every configuration. `short`: it is
    smaller in one, which `example` gives. `open`: one of the two could not be followed."""

    kind: Kind
    why: str
    example: str = ""
    always: bool = False


@dataclass(frozen=True)
class Sized:
    """A request's ways in bytes over canonical names; `roles` are those that are drivers.

    `open` says what could not be followed; then the ways hold for the rest.
    """

    ways: tuple[Node, ...]
    roles: frozenset[str]
    open: str = ""

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
    totals: list[Node] = [tree.Const(0)]
    for piece in asked.pieces:
        each = list(dict.fromkeys(_bytes(way) for way in piece.ways)) or [tree.Const(0)]
        totals = [tree.simplified("+", a, b) for a in totals for b in each][:MAX_WAYS]
    ways = tuple(dict.fromkeys(tree.substitute(total, names) for total in totals))
    return Sized(ways, frozenset(roles), left_open)


def _name(leaf: SlicedLeaf) -> str:
    if leaf.role:
        return leaf.role
    return canonical(leaf.name, leaf.why.startswith("assumed constant"))


def _bytes(specs: Sequence[SpecShape]) -> Node:
    total: Node = tree.Const(0)
    for spec in specs:
        total = tree.simplified("+", total, spec.bytes)
    return total


def by_rule(formula: str) -> Sized:
    """A known site's worst case, which is over config names alone."""
    return Sized((parse(formula).root,), frozenset())


def covers(reserved: Sized, asked: Sized, rows: str = "") -> Covered:
    """Whether `reserved` is at least `asked`.

    Where both have several ways, conditions are taken to go the same way in both: each way of
    the request must fit into one of the reservation's. `rows` names a number of the config that
    no count of the step's tokens exceeds there.
    """
    if reserved.ways == asked.ways and not asked.open and not reserved.open:
        return Covered("covered", "the same formula", always=True)
    if asked.open:
        return Covered("open", asked.open)
    for config in CONFIGS:
        found = _compared(reserved, asked, config, rows)
        if found is not None:
            return found
    if reserved.open:
        return Covered("open", f"the reservation: {reserved.open}")
    return Covered("covered", f"the largest request fits, in {len(CONFIGS)} configurations")


def _compared(reserved: Sized, asked: Sized, config: Config, rows: str) -> Covered | None:
    """None where it fits in this configuration."""
    try:
        held = max(_possible(reserved, config))
        needs = [_at_most(way, asked.roles, config, rows) for way in asked.ways]
    except (FormulaError, ValueError) as error:
        return Covered("open", str(error).splitlines()[0])
    need, at = max(needs, key=lambda pair: pair[0])
    if need <= held:
        return None
    if reserved.open:
        return Covered("open", f"the reservation: {reserved.open}")
    return Covered("short", f"{need:,} bytes asked, {held:,} reserved", _shown(config, at))


def _possible(reserved: Sized, config: Config) -> list[int]:
    """Bytes of each way of a reservation that this configuration can go: one that divides by
    zero is not taken."""
    found = []
    for way in reserved.ways:
        with suppress(FormulaError):
            found.append(_at_most(way, reserved.roles, config)[0])
    if not found:
        raise FormulaError("the reservation has no value", "")
    return found


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
