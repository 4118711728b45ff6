"""The verdict on a serving request: what, if anything, was reserved for it."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import and_, or_
from typing import Final, Literal

from wstrace.audit.call_sites import CallSite
from wstrace.audit.covering import (
    Covered,
    Sized,
    by_rule,
    covers,
    floor_equals_ceiling,
    largest_in_profile,
    sized,
    widest,
)
from wstrace.audit.flow import few_tokens, parts, plain
from wstrace.audit.gates import calls_super, gates, left_out, on_ways, open_gate, thresholds
from wstrace.audit.guards import guards
from wstrace.audit.reaching import BEFORE_LOCK, Phase, Phases, Reference, WayIn
from wstrace.audit.related import LOOSE, Placed, Relations
from wstrace.audit.request_roles import near_phases
from wstrace.audit.shown_rules import digest_of, shown_for
from wstrace.expr import tree
from wstrace.expr.expression import parse
from wstrace.expr.tree import Node
from wstrace.known_sites.known import match as known_site
from wstrace.slicer.static import AskedSpecs, CallPlace, ClassRef, Project, asked
from wstrace.slicer.syntax import FunctionSource, parameters

DEPTH: Final = 3
MANY_CALLS: Final = 8
Match = Literal["full", "self", "partial", "incidental", "none", "na"]

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

    `ruled` gathers the rules that were looked up, with the digest of the request's code.
    `warms_steps`: whether the release makes real steps before the lock, in its default runner.
    """

    project: Project
    relations: Relations
    reservations: Sequence[Placed]
    version: str | None
    warms_steps: bool
    phases: Phases
    _sized: dict[int, Sized] = field(default_factory=dict)
    _always: dict[int, frozenset[str]] = field(default_factory=dict)
    asked: dict[int, AskedSpecs] = field(default_factory=dict)
    ruled: list[tuple[str, str]] = field(default_factory=list)

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
            gate = self.missing_gate(serving, reserved) or self.left_out(serving, reserved)
            says = f"{reserved.site.enclosing} reserves the same spec"
            if gate:
                return Matched("partial", f"{says}, but only where {gate}", by, condition=gate)
            return Matched("full", says, by)
        held = self.reserved_size(reserved)
        found = self.enough(serving, reserved.site, held)
        where = f"{reserved.site.enclosing} reserves"
        gate = self.missing_gate(serving, reserved) or self.left_out(serving, reserved)
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

    def enough(self, serving: Placed, reserved: CallSite, held: Sized) -> Covered:
        """By the sources of both. The worst case of a known site's rule stands in for a request
        only where the code of both is what the rule was held against. Where it says that the
        rows are requests, a step of decodes has no more tokens than requests."""
        site = serving.site
        asks, known = self.size(site), self.known(serving)
        found = covers(held, asks, known=known)
        rule = known_site(site.file, site.enclosing, self.version)
        if rule is None or held.open or found.kind == "covered":
            return found
        if not asks.open:
            named = tree.names(parse(rule.formula).root)
            by_requests = "max_num_seqs" in named and "max_num_batched_tokens" not in named
            if by_requests:
                fewer = covers(held, asks, "max_num_seqs", known)
                shown = fewer.kind == "covered" and self.shown(rule.id, site, reserved)
                return fewer if shown else found
        ruled = covers(widest(held), by_rule(rule.formula))
        if ruled.kind != "covered":
            return found
        stopped = f"the request could not be followed ({found.why})"
        if not self.shown(rule.id, site, reserved):
            other = f"{stopped}, and its code is not what {rule.id} was shown for"
            return replace(found, why=other) if asks.open else found
        by_it = f"by the rule {rule.id}, which was shown for this code"
        if not asks.open:
            return replace(ruled, why=f"{ruled.why}, {by_it}")
        return replace(ruled, why=f"{ruled.why}, {by_it}: {stopped}")

    def shown(self, rule: str, site: CallSite, reserved: CallSite) -> bool:
        """Whether the rule was held against the code that this request and its reservation have
        here."""
        both = (self.specs(site), self.specs(reserved))
        digest = digest_of(both, self.project)
        self.ruled.append((rule, digest))
        return shown_for(rule, digest)

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
        if wanted.stopped or wanted.leaves or not all(p.ways for p in wanted.pieces):
            return False
        ours, theirs = Counter[Node](), Counter[Node]()
        for piece in wanted.pieces:  # the most of any way, against what every way has
            ours += reduce(or_, (Counter(s.bytes for s in way) for way in piece.ways))
        for piece in held.pieces:
            ways = [Counter(s.bytes for s in way) for way in piece.ways]
            theirs += reduce(and_, ways) if ways else Counter()
        return bool(ours) and ours <= theirs

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
        needed, has = gates(reserved.ways), gates(serving.ways)
        compared = thresholds(g.test for way in serving.ways for _, g in way.guards)
        return next((g for g in needed if g not in has and not open_gate(g, compared)), "")

    def without(self, placed: Placed) -> Matched:
        """The verdict where no reservation is meant for it."""
        near = near_phases(placed.site, placed.ways)
        called = self.by_calls(placed) if near & BEFORE_LOCK else None
        if called is not None:
            return called
        if self.profiled(placed, near):
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

    def left_out(self, serving: Placed, reserved: Placed) -> str:
        """A condition, or a class, for which the reservation is not made."""
        place = serving.site.place
        more = sorted(self.always(place.source, place.module, DEPTH))
        shared = on_ways(serving)
        found = left_out(shared, serving, reserved, more)
        return found or self.without_subclass(serving, reserved)

    def known(self, serving: Placed) -> frozenset[tuple[str, bool]]:
        """Conditions that hold wherever the request is made, with their side."""
        place = serving.site.place
        own = reduce(and_, on_ways(serving))
        texts = own | self.always(place.source, place.module, DEPTH)
        return frozenset(
            (t.removeprefix("not (").removesuffix(")"), False)
            if t.startswith("not (")
            else (t, True)
            for t in texts
        )

    def without_subclass(self, serving: Placed, reserved: Placed) -> str:
        """A class below that replaces a method on the way to the reservation, without calling
        it, where it makes the request still."""
        for way in reserved.ways:
            for module, name in zip(way.modules, way.functions, strict=False):
                owner, _, method = name.rpartition(".")
                cls = self.project.lookup(module, owner) if owner else None
                if not isinstance(cls, ClassRef):
                    continue
                for below in self.project.subclasses(cls):
                    own = self.project.own_member(below, method)
                    if own is None or calls_super(own.node, cls.name, method):
                        continue
                    if self.serves(below, serving) and not self.reserves(below, serving):
                        return f"the class is not {below.name}, whose {method} does not reserve"
        return ""

    def serves(self, cls: ClassRef, serving: Placed) -> bool:
        """Whether a class, or one that a backend names with it, inherits the request."""
        owner = self.relations.owner(serving.site)
        name = serving.site.place.source.name
        if owner is None:
            return False
        for each in (cls, *self.relations.partners(cls)):
            inherits = owner in self.project.bases(each)
            member = self.project.member(each, name) if inherits else None
            if member is not None and member.node is serving.site.place.source.node:
                return True
        return False

    def reserves(self, cls: ClassRef, serving: Placed) -> bool:
        """Whether a class has a reservation of its own that is enough."""
        for reserved in self.reservations:
            inside = any(n.startswith(f"{cls.name}.") for _, n in reserved.functions)
            enough = inside and self.enough(
                serving, reserved.site, self.reserved_size(reserved)
            )
            if enough and enough.kind == "covered":
                return True
        return False

    def always(
        self,
        source: FunctionSource,
        module: str,
        depth: int,
        seen: frozenset[int] = frozenset(),
    ) -> frozenset[str]:
        """Conditions that every call of a function is under, those of its callers included."""
        if depth == 0 or id(source.node) in seen or self.phases.common(source):
            return frozenset()
        key = id(source.node)
        if key not in self._always:
            uses = self.phases.uses(source, module)
            each = [
                frozenset(
                    plain(t, h) for g in guards(u.source, u.node) for t, h in parts(u.source, g)
                )
                | self.always(u.source, u.module, depth - 1, seen | {key})
                for u in (uses if len(uses) <= MANY_CALLS else ())
            ]
            self._always[key] = reduce(and_, each) if each else frozenset()
        return self._always[key]

    def unconditional(self, placed: Placed) -> bool:
        """Whether a function that is given metadata calls it before looking at that."""
        return any(
            way.phase is Phase.STEP and way.functions and way.before_metadata
            for way in placed.ways
        )

    def profiled(self, placed: Placed, near: set[Phase]) -> bool:
        """Whether the profile run makes the largest request itself."""
        size = self.size(placed.site)
        if not placed.site.persistent and not largest_in_profile(size):
            return False
        ways = [w for w in placed.ways if not any(few_tokens(s, g) for s, g in w.guards)]
        phases = {way.phase for way in ways}
        passes = phases & {Phase.ANY, Phase.PROFILE}
        anywhere = phases == {Phase.ANY} or (bool(passes) and self.fixed(placed.site))
        return bool(near & BEFORE_LOCK) or anywhere or self.unconditional(placed)

    def by_calls(self, placed: Placed) -> Matched | None:
        """Of a function that the profile branch and a step both call: whether each call of a
        step asks for no more than one before the lock; None where calls do not tell."""
        early = [w for w in placed.ways if w.called and w.phase in BEFORE_LOCK and not w.late]
        steps = [w for w in placed.ways if w.called and w.phase not in BEFORE_LOCK]
        if placed.site.persistent or not early or not steps:
            return None
        gate = self.left_out(
            replace(placed, ways=tuple(steps)), replace(placed, ways=tuple(early))
        )
        worst: Matched | None = None
        for step in steps:
            each = [self.call_covers(placed.site, first, step) for first in early]
            best = min(each, key=lambda found: _KINDS.index(found.kind))
            if best.kind == "covered" and not gate:
                continue
            why = f"the profile branch calls it too; {best.why}"
            if best.kind == "covered":
                why = f"the profile branch calls it too, but only where {gate}"
            worst = worst or Matched("partial", why, (), gate or best.example, best.example)
        return worst or Matched("full", "the profile branch asks for as much by it")

    def call_covers(self, site: CallSite, early: WayIn, step: WayIn) -> Covered:
        """One call before the lock against one of a step."""
        assert early.called is not None
        assert step.called is not None
        if _told(early.called) == _told(step.called):
            return Covered("covered", "the same arguments")
        held, asks = (self.called_size(site, way.called) for way in (early, step))
        return covers(held, asks)

    def called_size(self, site: CallSite, called: Reference | None) -> Sized:
        """What a request asks for where one place calls its function."""
        assert called is not None
        assert called.call is not None
        place = CallPlace(called.source, called.module, called.call)
        return sized(asked(self.project, site.place, site.args, place))

    def fixed(self, site: CallSite) -> bool:
        """Whether its bytes are the same in every step: those of the config alone."""
        size = self.size(site)
        if size.open:
            rule = known_site(site.file, site.enclosing, self.version)
            return rule is not None and not rule.drivers
        return size.fixed or floor_equals_ceiling(size)


_KINDS: Final = ("covered", "short", "open")


def _told(called: Reference) -> tuple[str, ...]:
    """The arguments of a call in words that mean the same in another: names of the function's
    own are told apart, unless it binds them once."""
    assert called.call is not None
    arguments = [*called.call.args, *(k.value for k in called.call.keywords)]
    names = {n.id for a in arguments for n in ast.walk(a) if isinstance(n, ast.Name)}
    own = called.source.locals - set(parameters(called.source.node))
    marks = [
        f"{name} of {id(called.source.node if called.source.bindings(name) == 1 else called)}"
        for name in sorted(names & own)
    ]
    return (*(ast.unparse(a) for a in arguments), *marks)


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
