"""The verdict on a serving request: what, if anything, was reserved for it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from wstrace.audit.call_sites import CallSite
from wstrace.audit.covering import Covered, Sized, by_rule, covers, floor_equals_ceiling, sized
from wstrace.audit.flow import FlowGuard, expanded, guards, metadata, parts, unlocked
from wstrace.audit.reaching import BEFORE_LOCK, Phase, WayIn
from wstrace.audit.related import LOOSE, Placed, Relations
from wstrace.audit.request_roles import near_phases, role_of
from wstrace.expr import tree
from wstrace.expr.expression import parse
from wstrace.known_sites.known import match as known_site
from wstrace.slicer.static import AskedSpecs, Project, asked
from wstrace.slicer.syntax import FunctionSource

Match = Literal["full", "self", "partial", "incidental", "none", "na"]

# vLLM 0.13.0 to 0.33.0: settings of the scheduler and the cache that change which steps there
# are. A reservation behind one of them is missing where it is off.
# matches: "scheduler_config.enable_chunked_prefill"
_OF_THE_SCHEDULER: Final = re.compile(
    r"scheduler_config\.\w+|enable_chunked_prefill|enable_prefix_caching|speculative_config"
    r"|max_num_batched_tokens"
)
# matches: "vllm_config.parallel_config.rank"
_HELD_BY: Final = re.compile(r"\b(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])")


_DRAFTS_ONLY: Final = (
    "nothing is reserved, and only a step with draft tokens passes here, which warm-up does not"
    " make"
)
_BY_LUCK: Final = (
    "nothing is reserved; its bytes are fixed, so a warm-up step that passes here is enough"
)


@dataclass(frozen=True)
class Matched:
    """A verdict, its reason, and the reservations (FILE:LINE) it rests on."""

    match: Match
    reason: str
    by: tuple[str, ...] = ()
    condition: str = ""
    example: str = ""


@dataclass
class Matcher:
    """Compares the serving requests of one release with its reservations.

    `warms_steps`: whether the release makes real steps before the lock, in its default runner.
    """

    project: Project
    relations: Relations
    reservations: Sequence[Placed]
    version: str | None
    warms_steps: bool
    _sized: dict[int, Sized] = field(default_factory=dict)
    asked: dict[int, AskedSpecs] = field(default_factory=dict)

    def size(self, site: CallSite) -> Sized:
        """What a request asks for, in one spelling of names."""
        key = id(site.place.call)
        if key not in self._sized:
            self._sized[key] = sized(self.specs(site))
        return self._sized[key]

    def reserved_size(self, reserved: Placed) -> Sized:
        """What a reservation holds; in the profile run, for the largest step."""
        profiled = any(way.phase is Phase.PROFILE for way in reserved.ways)
        return sized(self.specs(reserved.site), profiled)

    def specs(self, site: CallSite) -> AskedSpecs:
        """What a request asks for, sliced once."""
        key = id(site.place.call)
        if key not in self.asked:
            nodes = () if site.persistent else site.args
            self.asked[key] = asked(self.project, site.place, nodes)
        return self.asked[key]

    def verdict(self, placed: Placed) -> Matched:
        """The match of a serving request or a helper."""
        if not placed.ways:
            return Matched("na", "nothing in this release calls it")
        if placed.site.persistent:
            return self.without(placed)
        found = [self.compared(placed, r, rank) for rank, r in self.related(placed)]
        for match in ("full", "partial"):
            best = next((m for m in found if m is not None and m.match == match), None)
            if best is not None:
                return best
        alone = self.without(placed)
        other = next((m for m in found if m is not None), None)
        if other is not None and alone.match == "none":
            reason = f"{alone.reason}; {other.reason}"
            return replace(alone, reason=reason, example=other.example)
        return alone

    def related(self, placed: Placed) -> list[tuple[int, Placed]]:
        return self.relations.candidates(placed, self.reservations)

    def compared(self, serving: Placed, reserved: Placed, rank: int) -> Matched | None:
        """One reservation against the request; None where it was not made for it."""
        by = (at_of(reserved.site),)
        if rank >= LOOSE:
            if not self.has_specs(serving.site, reserved.site):
                return None
            return Matched("full", f"{reserved.site.enclosing} reserves the same spec", by)
        held = self.reserved_size(reserved)
        found = self.enough(serving.site, held)
        where = f"{reserved.site.enclosing} reserves"
        gate = self.missing_gate(serving, reserved) or own_condition(serving, reserved)
        if found.kind == "covered" and gate:
            reason = f"{where} enough, but only where {gate}"
            return Matched("partial", reason, by, condition=gate)
        if found.kind == "covered":
            return Matched("full", f"{where} at least as much: {found.why}", by)
        meant = rank == 0 or self.corresponds(serving.site, reserved.site)
        if found.kind == "short" and meant:
            reason = f"{where} less than it may ask: {found.why}"
            return Matched("partial", reason, by, found.example, found.example)
        if found.kind == "open" and meant:
            return Matched("partial", f"{where} for it; that it is enough is not shown: "
                           f"{found.why}", by)  # fmt: skip
        why = f"what {reserved.site.enclosing} reserves was not made for it"
        return Matched("none", why, example=found.example)

    def enough(self, site: CallSite, held: Sized) -> Covered:
        """By the sources of both: the reservation's is always sliced. The worst case of a known
        site stands only for a request that the slicer cannot follow. Where it says that the
        rows are requests, a step of decodes has no more tokens than requests."""
        asks = self.size(site)
        found = covers(held, asks)
        rule = known_site(site.file, site.enclosing, self.version)
        if rule is None or held.open or found.kind == "covered":
            return found
        if not asks.open:
            named = tree.names(parse(rule.formula).root)
            by_requests = "max_num_seqs" in named and "max_num_batched_tokens" not in named
            return covers(held, asks, rows="max_num_seqs") if by_requests else found
        ruled = covers(held, by_rule(rule.formula))
        if ruled.kind == "covered":
            stopped = f"the request could not be followed ({found.why})"
            return replace(ruled, why=f"{ruled.why}, by the rule {rule.id}: {stopped}")
        return found

    def corresponds(self, site: CallSite, reserved: CallSite) -> bool:
        """Whether a reservation has the shapes of a request: as many specs of as many
        dimensions, so far as they are understood."""
        shape, held = self.ranks(site), self.ranks(reserved)
        if not shape or not held:
            return not held and len(reserved.args) >= len(site.args)
        return any(_inside(s, h) for s in shape for h in held)

    def has_specs(self, site: CallSite, reserved: CallSite) -> bool:
        """Whether each spec of a request is one of the reserved specs."""
        wanted, held = self.specs(site), self.specs(reserved)
        ours = [s for p in wanted.pieces for way in p.ways for s in way]
        theirs = {s.bytes for p in held.pieces for way in p.ways for s in way}
        known = ours and not wanted.stopped and not wanted.leaves
        return bool(known) and all(s.bytes in theirs for s in ours)

    def ranks(self, site: CallSite) -> list[tuple[int, ...]]:
        """The number of dimensions of each spec, for each way that conditions go."""
        found: list[tuple[int, ...]] = [()]
        for piece, node in zip(self.specs(site).pieces, site.args, strict=False):
            each = [tuple(len(s.dims) if s.dims else 0 for s in way) for way in piece.ways]
            each = each or [_written_ranks(node)]
            found = [a + b for a in found for b in dict.fromkeys(each)]
        return [ranks for ranks in found if ranks]

    def missing_gate(self, serving: Placed, reserved: Placed) -> str:
        """A setting of the scheduler that the reservation needs and the request does not."""
        needed, has = _gates(reserved.ways), _gates(serving.ways)
        conditions = " ".join(g.text for way in serving.ways for _, g in way.guards)
        return next((g for g in needed if g not in has and not _open_gate(g, conditions)), "")

    def without(self, placed: Placed) -> Matched:
        """The verdict where no reservation is meant for it."""
        phases = {way.phase for way in placed.ways}
        near = near_phases(placed.site, placed.ways)
        if role_of(placed.site, placed.ways) == "helper" and self.same_calls(placed):
            return Matched("full", "the profile branch calls it with the same arguments")
        passes = phases & {Phase.ANY, Phase.PROFILE}
        anywhere = phases == {Phase.ANY} or (bool(passes) and self.fixed(placed.site))
        if near & BEFORE_LOCK or anywhere or self.unconditional(placed):
            return Matched(
                "self", "the profile run passes here, with the largest step it makes"
            )
        if not self.fixed(placed.site):
            return Matched("none", "nothing is reserved, and its bytes follow the step")
        if any(_speculative(way) for way in placed.ways):
            return Matched("none", _DRAFTS_ONLY)
        if self.warms_steps:
            return Matched("incidental", _BY_LUCK)
        return Matched("none", "nothing is reserved, and no step runs before the lock")

    def unconditional(self, placed: Placed) -> bool:
        """Whether a function that is given metadata calls it before looking at that."""
        return any(
            way.phase is Phase.STEP and way.functions and way.before_metadata
            for way in placed.ways
        )

    def same_calls(self, placed: Placed) -> bool:
        """Whether each call of a helper in a step has the arguments of one before the lock."""
        calls: dict[bool, set[str]] = {True: set(), False: set()}
        for way in placed.ways:
            if way.call is not None:
                arguments = [*way.call.args, *(k.value for k in way.call.keywords)]
                told = ", ".join(ast.unparse(a) for a in arguments)
                calls[way.phase in BEFORE_LOCK].add(told)
        return bool(calls[False]) and calls[False] <= calls[True]

    def fixed(self, site: CallSite) -> bool:
        """Whether its bytes are the same in every step: those of the config alone."""
        size = self.size(site)
        if size.open:
            rule = known_site(site.file, site.enclosing, self.version)
            return rule is not None and not rule.drivers
        return size.fixed or floor_equals_ceiling(size)


def at_of(site: CallSite) -> str:
    """FILE:LINE."""
    return f"{site.file}:{site.line}"


def _written_ranks(node: ast.expr) -> tuple[int, ...]:
    """Of a spec written as ((a, b), dtype), what is not understood of it aside."""
    shape = node.elts[0] if isinstance(node, ast.Tuple) and node.elts else None
    return (len(shape.elts),) if isinstance(shape, ast.Tuple) else ()


def _inside(shape: tuple[int, ...], held: tuple[int, ...]) -> bool:
    """Whether the ranks of a request are those of the reservation, which may have more."""
    return held[: len(shape)] == shape


def _gates(ways: Sequence[WayIn]) -> list[str]:
    """Conditions on the scheduler's settings that lie on every way."""
    found = [
        [text for source, guard in way.guards for text in _of_guard(source, guard)]
        for way in ways
    ]
    shared = found[0] if found else []
    return [text for text in shared if all(text in other for other in found)]


def _open_gate(gate: str, conditions: str) -> bool:
    """Whether a gate is closed only where the request cannot be made: without chunked prefill
    and prefix caching no request has computed tokens, and a budget below a threshold lets none
    through that the request itself compares with the same threshold."""
    test = ast.parse(gate, mode="eval").body
    whole = isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And)
    parts = test.values if isinstance(test, ast.BoolOp) and whole else [test]
    return all(_open_part(part, conditions) for part in parts)


def _open_part(part: ast.expr, conditions: str) -> bool:
    text = ast.unparse(part)
    if isinstance(part, ast.BoolOp) and isinstance(part.op, ast.Or):
        return "enable_chunked_prefill" in text and "enable_prefix_caching" in text
    if isinstance(part, ast.Compare) and "max_num_batched_tokens" in text:
        return ast.unparse(part.comparators[0]) in conditions
    return isinstance(part, ast.Call) and text.endswith("is_workspace_manager_initialized()")


def own_condition(serving: Placed, reserved: Placed) -> str:
    """A condition of the reservation's function that leaves it out where the request is still
    made, or ''.

    That there is no metadata or no lock yet is the phase's own, and where a condition raises,
    nothing is served at all.
    """
    source, call = reserved.site.place.source, reserved.site.place.call
    shared = [{_plain(t, h) for s, g in w.guards for t, h in parts(s, g)} for w in serving.ways]
    conditions = " ".join(g.text for way in serving.ways for _, g in way.guards)
    asks = {n.id for a in reserved.site.args for n in ast.walk(a) if isinstance(n, ast.Name)}
    for guard in guards(source, call):
        if guard.fatal or unlocked(guard):
            continue
        for test, holds in parts(source, guard):
            alone = replace(guard, test=test, holds=holds)
            if _of_its_phase(source, guard, alone, asks) or _open_part(test, conditions):
                continue
            if not all(_plain(test, holds) in each for each in shared):
                return alone.text
    return ""


def _of_its_phase(
    source: FunctionSource, guard: FlowGuard, part: FlowGuard, asks: set[str]
) -> bool:
    """Whether a part of a guard leaves no reservation out: the phase's own condition, or what
    only says that there is something to ask for (`if specs: request(*specs)`)."""
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


def _plain(test: ast.expr, holds: bool) -> str:
    """A condition in one spelling, whoever holds its names: `self.x` and `layer.x` are x."""
    text = _HELD_BY.sub("", ast.unparse(test))
    return text if holds else f"not ({text})"


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


def _speculative(way: WayIn) -> bool:
    """Only a step that verifies draft tokens goes this way."""
    return any("spec" in g.text and g.holds and "decode" in g.text for _, g in way.guards)


def warms_steps(project: Project) -> bool:
    """Whether a release makes real steps while it warms up, for models that it does not name.

    `warmup_kernels` of the V2 runner makes them. 0.22.1 and 0.24.0 take that runner for models
    of a list only; 0.26.0 for any other dense model too; 0.29.0 on have no such list.
    """
    if not project.mentioning("def warmup_kernels"):
        return False
    for module in project.mentioning("def use_v2_model_runner"):
        for cls in project.classes(module):
            if project.own_member(cls, "use_v2_model_runner") is not None:
                listed = project.own_member(cls, "_is_default_v2_model_runner_model")
                return listed is None or _beyond_a_list(listed.node)
    return False


def _beyond_a_list(node: ast.AST) -> bool:
    """Whether a function returns `in the list or ...`."""
    returned = [n.value for n in ast.walk(node) if isinstance(n, ast.Return)]
    return any(isinstance(v, ast.BoolOp) and isinstance(v.op, ast.Or) for v in returned)
