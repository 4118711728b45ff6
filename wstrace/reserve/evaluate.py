"""A reserve config meets a live engine: does it fit, and how many bytes is it now?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from wstrace.errors import WstraceError
from wstrace.expr import expression
from wstrace.expr.maximum import Joint, maximise
from wstrace.reserve.schema import MAX_BYTES, ReserveConfig, SiteReserve, layout, model_digest
from wstrace.trace.records import Limit, Slot
from wstrace.vllm.limits import NUMBERS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_LATE: Final = frozenset(row.name for row in NUMBERS.values() if row.late)
_NO_NEED: Final = frozenset(("kv_cache_memory_bytes", "num_gpu_blocks_override"))


@dataclass(frozen=True)
class SlotBytes:
    """What to reserve in one slot, and which site decides it."""

    slot: Slot
    bytes: int
    why: str


def evaluate(
    config: ReserveConfig, limits: Mapping[str, Limit], slots: Sequence[Slot] = ()
) -> list[SlotBytes]:
    """Bytes for each slot under the live limits: the maximum over the sites.

    `slots` are the slots of the live manager; those of the config are added. A site without
    slots counts in every slot, and so does any site in a slot that the config does not
    name (a manager with more slots than the recorded one). Where no limit shrank, a site
    gets at least its recorded bytes.

    Raises WstraceError where a formula needs a limit that the engine does not have.
    """
    sizes = [(site, site_bytes(site, config.limits, limits)) for site in config.sites]
    recorded = {Slot(s.ubatch, s.lane): s.bytes for s in config.slots}
    floor = recorded if not shrank(config.limits, limits) else {}
    wanted = sorted(recorded.keys() | set(slots))
    known = recorded.keys() | {slot for site in config.sites for slot in site.slots}
    return [_slot_bytes(slot, sizes, floor.get(slot, 0), slot in known) for slot in wanted]


def _slot_bytes(
    slot: Slot, sizes: Sequence[tuple[SiteReserve, int]], floor: int, known: bool
) -> SlotBytes:
    asked = [
        (size, site)
        for site, size in sizes
        if not known or not site.slots or slot in site.slots
    ]
    size, site = max(asked, key=lambda pair: pair[0], default=(0, None))
    if size < floor or site is None:
        return SlotBytes(slot, max(size, floor), "the total in the config")
    reason = site.formula if site.follows_limits else f"{site.grade}, {site.cover}"
    return SlotBytes(slot, size, f"{site.site}: {reason}")


def site_bytes(
    site: SiteReserve, recorded: Mapping[str, Limit], limits: Mapping[str, Limit]
) -> int:
    """What a site needs under `limits`; its recorded bytes where nothing can be computed.

    What vLLM knows only after profiling, when a reserve is long applied, is taken as recorded.
    """
    if not site.follows_limits or site.formula is None:
        return site.bytes
    kept = {name: n for name, n in numeric(recorded).items() if name in _LATE}
    numbers = {**kept, **numeric(limits), **site.constants}
    value = _maximum(site, numbers)
    if value > MAX_BYTES or value < 0:
        raise WstraceError(
            f"{site.site} would need {value} bytes under these limits.",
            "Check the limits, or leave the site out of the reserve config.",
        )
    return value if shrank(recorded, limits) else max(value, site.bytes)


def _maximum(site: SiteReserve, numbers: Mapping[str, int]) -> int:
    formula = expression.parse(site.formula or "0")
    limits = {name: expression.parse(text) for name, text in site.drivers.items()}
    needed = (formula.names - limits.keys()).union(*(text.names for text in limits.values()))
    missing = sorted(needed - numbers.keys())
    if missing:
        raise WstraceError(
            f"{site.site} needs {', '.join(missing)}, which this engine's config lacks.",
            "Add it under `constants:` of this site, or take the site out of the config.",
        )
    ranges = {}
    for name in formula.names & limits.keys():
        low = site.lowest.get(name, 0)
        ranges[name] = (low, max(low, limits[name].evaluate(numbers)))
    joint = [Joint.of(text, 0) for text in site.joint]
    joint = [limit for limit in joint if limit.left.names <= ranges.keys() | numbers.keys()]
    return maximise(formula, numbers, ranges, joint).value


def numeric(limits: Mapping[str, Limit]) -> dict[str, int]:
    """The limits that a formula can use: integers, and switches as 0 or 1."""
    return {name: int(value) for name, value in limits.items() if isinstance(value, int)}


def shrank(recorded: Mapping[str, Limit], limits: Mapping[str, Limit]) -> bool:
    """True where a number that needs may follow is smaller now. A smaller KV cache is none:
    it is what a fixed KV size is told to become."""
    live = numeric(limits)
    return any(
        live.get(name, value) < value
        for name, value in numeric(recorded).items()
        if name not in _NO_NEED and not isinstance(recorded[name], bool)
    )


def mismatch(config: ReserveConfig, limits: Mapping[str, Limit], digest: str) -> str | None:
    """Why this config is not for this engine, in one sentence; None where it is.

    Layout decides: heads, sizes, dtypes, parallel groups. A changed max_model_len,
    max_num_batched_tokens, max_num_seqs or block_size is no mismatch: formulas follow them.
    An empty digest (a config made from a log, which shows only part of the layout) holds for
    any engine whose layout agrees with what the log showed.
    """
    theirs, ours = config.model.layout, layout(limits)
    different = [
        f"{name} is {ours[name]}, the reserve config holds for {theirs[name]}"
        for name in theirs
        if name in ours and ours[name] != theirs[name]
    ]
    if different:
        return "; ".join(different)
    if config.model.digest not in ("", digest, model_digest(limits)):
        return _digest_sentence(config, ours, digest)
    return _new_quantity(config.limits, numeric(limits))


def _new_quantity(recorded: Mapping[str, Limit], live: Mapping[str, int]) -> str | None:
    """A number that raises limits, and that the recorded run did not have at all."""
    drafts = live.get("num_speculative_tokens", 0)
    if drafts and recorded.get("num_speculative_tokens") is None:
        return f"the reserve config was made without speculative decoding ({drafts} drafts now)"
    widest = live.get("max_cudagraph_capture_size", 0)
    if recorded.get("max_cudagraph_capture_size") is None and widest > live.get(
        "max_num_batched_tokens", widest
    ):
        return f"the reserve config was made without max_cudagraph_capture_size ({widest} now)"
    padded = live.get("mixed_graph_tokens", 0)
    if recorded.get("mixed_graph_tokens") == 0 and padded > live.get("max_num_seqs", padded):
        return (
            f"the reserve config was made without full graphs of mixed steps ({padded} tokens)"
        )
    return None


def _digest_sentence(config: ReserveConfig, ours: Mapping[str, Limit], digest: str) -> str:
    odd = sorted(config.model.layout.keys() ^ ours.keys())
    told = f" (known on one side only: {', '.join(odd)})" if odd else ""
    return (
        f"the reserve config holds for model digest {config.model.digest}, "
        f"this engine has {digest}{told}"
    )
