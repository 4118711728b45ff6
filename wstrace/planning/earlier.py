"""Sites of earlier reserves: a new reserve keeps what an old one covered, it only grows.

An earlier reserve is one that the trace's engine ran with, one given with `--merge`, or the
one that another trace calls for.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from wstrace.bounds.bound import Bound
from wstrace.errors import WstraceError
from wstrace.planning.inputs import Engine, SiteBound
from wstrace.reserve.evaluate import mismatch, site_bytes
from wstrace.reserve.schema import NotCovered, ReserveConfig, SiteReserve, model_digest
from wstrace.trace.cleaning import cleaned
from wstrace.trace.site_key import SiteKey

KEPT: Final = "kept from "
BEHIND: Final = "sites behind the failure"
"""What a plan from a run that died calls what came after."""
THEN: Final = "Of the run from which"


@dataclass(frozen=True)
class Earlier:
    """A reserve whose sites are kept; `name` says to a person where it came from."""

    name: str
    config: ReserveConfig


def applied_config(text: str) -> ReserveConfig | None:
    """The config that a trace recorded as applied; None where it recorded none."""
    if not text:
        return None
    try:
        found: ReserveConfig = cleaned(msgspec.json.decode(text, type=ReserveConfig))
    except msgspec.MsgspecError:
        return None
    return found


def with_kept(
    sites: Sequence[SiteBound], earlier: Sequence[Earlier], engine: Engine
) -> list[SiteBound]:
    """`sites` and those of `earlier`; of one site the larger need, this run's where equal.

    Raises WstraceError for a reserve of another engine.
    """
    found = {site.name: site for site in sites}
    for reserve in earlier:
        _refuse_other_engine(reserve, engine)
        for old in reserve.config.sites:
            new = found.get(old.site)
            key = SiteKey.named(old.site) if new is None else new.key
            kept = _kept(old, key, reserve, engine, reached=new is not None)
            if new is None or (new.bound.bytes or 0) < (kept.bound.bytes or 0):
                found[old.site] = kept if new is None else _seen_too(kept, new)
    return list(found.values())


def still_uncovered(earlier: Sequence[Earlier], told: Collection[str]) -> list[NotCovered]:
    """What earlier reserves did not cover, but for sites that this plan has `told` of.

    A death that an earlier run had is told as that run's.
    """
    items = [
        _of_then(item, reserve) for reserve in earlier for item in reserve.config.not_covered
    ]
    return [item for item in items if item.site not in told]


def _of_then(item: NotCovered, reserve: Earlier) -> NotCovered:
    if item.site != BEHIND or item.why.startswith(THEN):
        return item
    return msgspec.structs.replace(item, why=f"{THEN} {reserve.name} was made: {item.why}")


def _refuse_other_engine(reserve: Earlier, engine: Engine) -> None:
    digest = model_digest(engine.limits)
    why = mismatch(reserve.config, {**engine.limits, **engine.given}, digest)
    if why is not None:
        raise WstraceError(
            f"{reserve.name} is for another engine: {why}.",
            "Make one reserve for each engine: a site's bytes follow heads, dtypes and ranks.",
        )


def _kept(
    old: SiteReserve, key: SiteKey, reserve: Earlier, engine: Engine, *, reached: bool
) -> SiteBound:
    """The site as a plan takes it, with what it needs under this engine's limits."""
    recorded, live = reserve.config.limits, {**engine.limits, **engine.given}
    told = "larger than what this run shows" if reached else "not reached in this run"
    bound = Bound(
        bytes=site_bytes(old, recorded, live),
        grade=old.grade,
        formula=old.formula,
        driver_formula=old.formula,
        constants=old.constants,
        drivers=old.drivers,
        lowest=old.lowest,
        joint=tuple(old.joint),
        why=_once(f"{KEPT}{reserve.name}, {told}", old.why),
        observed=old.observed,
        closed=not old.drivers,
    )
    cover = {"bound": "", "given": str(old.bytes)}.get(old.cover, old.cover)
    seen = old.bytes if old.cover == "observed" else old.observed
    slots = tuple(old.slots)
    return SiteBound(key.file, key.function, bound, seen, old.bytes, slots, cover)


def _once(told: str, why: str) -> str:
    """A reserve kept many times over says so once."""
    last = why.partition("; ")[2] if why.startswith(KEPT) else why
    return "; ".join(part for part in (told, last) if part)


def _seen_too(kept: SiteBound, new: SiteBound) -> SiteBound:
    most = max(kept.largest, new.largest)
    return replace(kept, largest=most, bound=replace(kept.bound, observed=most))
