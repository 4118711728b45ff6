"""Who will escape in a deployment, before its first start: by formula alone.

The arena that warm-up leaves is the largest reservation and the largest request that the
profile run itself makes, of the layers that the deployment loads. A serving request that may
ask for more escapes once a step asks it. Nothing is guessed: a number that the config does not
give is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from wstrace.audit.block_sizes import default_block_size
from wstrace.audit.call_sites import CallSite
from wstrace.audit.covering import Sized, largest
from wstrace.audit.deployment import Deployment
from wstrace.audit.gates import config_gates
from wstrace.audit.loading import UNKNOWN_LAYER, Loaded, Loading
from wstrace.audit.matching import at_of
from wstrace.audit.related import Placed
from wstrace.audit.request_roles import SERVING
from wstrace.audit.whole import AuditedSite, Reading
from wstrace.bounds.by_rule import rule_bound
from wstrace.errors import WstraceError
from wstrace.known_sites.known import KnownSite, matches
from wstrace.vllm.limits import NUMBERS

# vLLM 0.13.0 to 0.33.0: numbers of config.json that one kind of layer alone has.
_SPECIAL: Final = ("index_", "compress_ratio", "linear_num")
_DECODES: Final = frozenset(("num_decode_tokens", "num_decodes", "num_decode_rows"))
_BLOCK: Final = "block_size"
Fate = Literal["escapes", "may escape", "fits", "hidden", "unknown", "not loaded"]
WORST_FIRST: Final[tuple[Fate, ...]] = (
    "escapes",
    "may escape",
    "unknown",
    "hidden",
    "fits",
    "not loaded",
)


@dataclass(frozen=True)
class Needed:
    """Bytes under one deployment's numbers; `needs` names what it lacks, `by` says how. Where
    rules are alternatives (which experts), `least` is the smallest of them."""

    bytes: int | None
    needs: tuple[str, ...] = ()
    by: str = ""
    least: int | None = None


@dataclass(frozen=True)
class Predicted:
    """One request of a deployment: whether it is loaded, its worst case, what becomes of it."""

    site: AuditedSite
    loaded: Loaded
    needed: Needed
    outcome: Fate
    why: str


@dataclass(frozen=True)
class Prediction:
    """`least` and `most` bound what warm-up leaves, by formula, of what is loaded for sure:
    they differ where a request has alternatives (which experts). `made_by` is the request that
    makes `most`, `unknown` are reservations whose bytes the config does not give."""

    least: int
    most: int
    made_by: str
    sites: tuple[Predicted, ...]
    unknown: tuple[str, ...]

    @property
    def escapes(self) -> tuple[Predicted, ...]:
        """Those that outgrow the arena."""
        return tuple(s for s in self.sites if s.outcome == "escapes")


def predict(read: Reading, deployment: Deployment) -> Prediction:
    """The arena and the escapes of a deployment under its flags."""
    loading = Loading(read.matcher.project, deployment)
    sites = {(s.at, s.enclosing): s for s in read.audit().sites}
    held: list[tuple[int, int, str]] = []
    unknown: list[str] = []
    serving: list[tuple[AuditedSite, Loaded, Needed]] = []
    for placed in read.placed:
        site = sites.get((at_of(placed.site), placed.site.enclosing))
        if site is None or placed.site.persistent or not placed.ways:
            continue
        loaded = loading.of(placed)
        needed = needed_by(placed.site, read, deployment)
        rules = matches(site.file, site.enclosing, read.version or None)
        loaded = _of_the_model(loaded, needed, rules)
        if site.role in SERVING:
            serving.append((site, loaded, needed))
        profiled = site.role == "reservation" or site.match == "self"
        captured = site.role == "serving" and captured_by_graphs(site, deployment)
        if loaded.loads != "yes" or not (profiled or captured) or not passes(placed, loading):
            continue
        if needed.bytes is None:
            unknown.append(site.at)
        else:
            held.append((needed.bytes, needed.least or needed.bytes, site.at))
    most, _, made_by = max(held, default=(0, 0, ""))
    least = max((size for _, size, _ in held), default=0)
    found = [_predicted(*entry, (least, most), loading) for entry in serving]
    found.sort(key=lambda p: (WORST_FIRST.index(p.outcome), -(p.needed.bytes or 0), p.site.at))
    return Prediction(least, most, made_by, tuple(found), tuple(unknown))


def _of_the_model(loaded: Loaded, needed: Needed, rules: Sequence[KnownSite]) -> Loaded:
    """What config.json says of a layer: a number that the model has not means no such layer,
    one that only such layers have that there is one."""
    keys = [n for n in needed.needs if n in NUMBERS and NUMBERS[n].keys]
    if keys:
        return Loaded("no", f"config.json has no {keys[0]}")
    taken = {n for rule in rules for n in rule.takes if n in NUMBERS and NUMBERS[n].keys}
    special = sorted(n for n in taken if n.startswith(_SPECIAL))
    if special and loaded == Loaded("maybe", UNKNOWN_LAYER):
        return Loaded("yes", f"config.json has {special[0]}")
    return loaded


def captured_by_graphs(site: AuditedSite, deployment: Deployment) -> bool:
    """Whether the capture of full decode graphs makes the largest request: its bytes follow the
    decodes of a step, and graphs are captured for as many (vLLM 0.20.0 on, by default)."""
    mode = deployment.words.get("cudagraph_mode", "FULL_AND_PIECEWISE")
    if "FULL" not in mode or deployment.numbers.get("enforce_eager"):
        return False
    widest = deployment.numbers.get("max_cudagraph_capture_size")
    decodes = deployment.numbers.get("max_num_seqs", 0)
    reaches = widest is None or widest >= decodes
    return reaches and not _DECODES.isdisjoint(site.drivers)


def passes(placed: Placed, loading: Loading) -> bool:
    """Whether the conditions on a reservation's ways hold, as far as the config tells."""
    return any(
        all(loading.holds(guard) is not False for _, guard in way.guards) for way in placed.ways
    )


def _predicted(
    site: AuditedSite,
    loaded: Loaded,
    needed: Needed,
    arena: tuple[int, int],
    loading: Loading,
) -> Predicted:
    if loaded.loads == "no":
        return Predicted(site, loaded, needed, "not loaded", loaded.why)
    outcome, why = _outcome(site, needed, arena, loading)
    if outcome == "escapes" and loaded.loads == "maybe":
        return Predicted(
            site, loaded, needed, "may escape", f"{why}, if it is loaded: {loaded.why}"
        )
    return Predicted(site, loaded, needed, outcome, why)


def _outcome(
    site: AuditedSite, needed: Needed, arena: tuple[int, int], loading: Loading
) -> tuple[Fate, str]:
    if site.match in ("full", "self"):
        return "fits", site.reason
    if captured_by_graphs(site, loading.deployment):
        return "fits", "full decode graphs are captured for as many decodes as a step may have"
    if site.match == "partial" and config_gates(site.condition, loading.truth) is True:
        return "fits", f"{site.condition} holds here"
    if needed.bytes is None:
        lacks = f"the config lacks {', '.join(needed.needs)}" if needed.needs else needed.by
        return "unknown", lacks
    if needed.bytes <= arena[0]:
        return "hidden", "a larger neighbour in the arena hides it"
    if needed.bytes <= arena[1]:
        return (
            "may escape",
            f"{site.reason}; a neighbour of up to {arena[1]:,} bytes may hide it",
        )
    return "escapes", site.reason


def needed_by(site: CallSite, read: Reading, deployment: Deployment) -> Needed:
    """The worst case of a request under the deployment's numbers; where only the block size is
    missing, with the one that this release takes for the request's backend."""
    found = _needed_by(site, read, deployment)
    taken = default_block_size(read.matcher.project, site) if _BLOCK in found.needs else None
    if taken is None:
        return found
    size, backend = taken
    numbers = {**deployment.numbers, _BLOCK: size}
    again = _needed_by(site, read, replace(deployment, numbers=numbers))
    if again.bytes is None:
        return found
    return replace(again, by=f"{again.by}; {_BLOCK} {size}, as vLLM sets it for {backend}")


def _needed_by(site: CallSite, read: Reading, deployment: Deployment) -> Needed:
    """The worst case of a request under the deployment's numbers: by the rule of its known site
    where there is one, else by its sliced formula. A rule's worst case is also what the
    reservation of the same function holds."""
    found = matches(site.file, site.enclosing, read.version or None)
    ruled = [_by_rule_of(found, deployment)] if found else []
    sliced = _by_source(read.matcher.size(site), deployment)
    for needed in (*ruled, sliced):
        if needed.bytes is not None:
            return needed
    return (*ruled, sliced)[0]


def _by_rule_of(rules: Sequence[KnownSite], deployment: Deployment) -> Needed:
    """The largest of the rules that hold for these numbers."""
    best: Needed | None = None
    sizes: list[int] = []
    for rule in rules:
        try:
            bound = rule_bound(rule, deployment.numbers)
        except WstraceError as error:
            best = best or Needed(None, (), error.message)
            continue
        by = bound.contradiction or f"rule {bound.known_site}"
        needed = Needed(bound.bytes, tuple(bound.needs), by)
        sizes += [] if bound.bytes is None else [bound.bytes]
        if best is None or (needed.bytes or -1) > (best.bytes or -1):
            best = needed
    return replace(best or Needed(None), least=min(sizes, default=None))


def _by_source(size: Sized, deployment: Deployment) -> Needed:
    if size.open:
        return Needed(None, (), size.open)
    needs, found = largest(size, deployment.numbers)
    return Needed(found, needs, "its source")
