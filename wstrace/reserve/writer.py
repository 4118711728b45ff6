"""Write a reserve config as YAML that teaches: every number with its reason beside it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from wstrace.units import human

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from wstrace.reserve.schema import NotCovered, ReserveConfig, SiteReserve
    from wstrace.trace.records import Limit, Slot

# not `on`, which YAML 1.1 reads as true
# matches: "num_kv_heads"
_PLAIN_KEY: Final = re.compile(r"(?!(y|n|yes|no|on|off|true|false|null)$)[a-z][a-z0-9_]*")
# matches: '"'
_ESCAPED: Final = re.compile(r"[^ !#-\[\]-~]")
_GRADES: Final = {
    "proved": "follows from the source or a known-site rule; exact for every request seen",
    "fitted": "a template that fits every request seen; likely right, not proved",
    "observed": "only the largest request seen: a larger one can still fail",
}
_COVERS: Final = {
    "bound": "the worst case under the limits below",
    "observed": "the largest request seen, chosen with --cover",
    "p99": "99 % of the requests seen, chosen with --cover: the rest can still fail",
    "given": "bytes given by hand",
}


def dumps(config: ReserveConfig) -> str:
    """The config as commented YAML; `load_reserve` gives the same config back."""
    return "\n".join([*_head(config), *_slots(config), *_sites(config), *_tail(config), ""])


def _head(config: ReserveConfig) -> Iterator[str]:
    yield "# wstrace reserve config: bytes put in each workspace arena before vLLM's memory"
    yield "# profiling, so that no listed site can outgrow a locked arena while serving."
    yield "# Use it:  wstrace run --reserve THIS_FILE -- vllm serve ..."
    yield "#     or:  WSTRACE_RESERVE=THIS_FILE vllm serve ..."
    yield f"kind: {config.kind}"
    yield f"version: {config.version}"
    yield f"made_by: {quote(config.made_by)}"
    yield ""
    yield "# Refused on an engine with another digest: the shapes would be others."
    yield "model:"
    yield f"  name: {quote(config.model.name)}"
    yield f"  digest: {quote(config.model.digest)}"
    yield from _mapping("  ", "layout", config.model.layout)
    yield ""
    yield "# The limits of the run this was made from. Formulas are computed again from the"
    yield "# live ones: with a larger --max-model-len a site that depends on it gets more."
    yield from _mapping("", "limits", config.limits)


def _slots(config: ReserveConfig) -> Iterator[str]:
    yield ""
    yield "# An arena is shared by all sites of its slot (ubatch, lane), one at a time: it"
    yield "# needs the largest of them, not their sum."
    if not config.slots:
        yield "slots: []"
        return
    yield "slots:"
    for slot in config.slots:
        yield f"  - ubatch: {slot.ubatch}"
        yield f"    lane: {slot.lane}"
        yield f"    bytes: {slot.bytes}  # {human(slot.bytes)}"


def _sites(config: ReserveConfig) -> Iterator[str]:
    yield ""
    yield "# Grades:"
    yield from (f"#   {grade}: {text}" for grade, text in _GRADES.items())
    if not config.sites:
        yield "sites: []"
        return
    yield "sites:"
    for site in config.sites:
        yield from _site(site)


def _site(site: SiteReserve) -> Iterator[str]:
    yield f"  - site: {quote(site.site)}"
    yield f"    grade: {site.grade}"
    yield f"    bytes: {site.bytes}  # {human(site.bytes)}"
    yield f"    cover: {site.cover}  # {_COVERS[site.cover]}"
    yield f"    observed: {site.observed}  # largest request seen, {human(site.observed)}"
    if site.slots:
        yield f"    slots: {_slot_list(site.slots)}"
    if site.formula is not None:
        yield f"    formula: {quote(site.formula)}"
    if site.constants:
        yield "    # numbers of the layer, read once"
        yield from _mapping("    ", "constants", site.constants)
    if site.drivers:
        yield "    # what varies from step to step, and the most it can be"
        yield from _mapping("    ", "drivers", site.drivers)
    if site.lowest:
        yield from _mapping("    ", "lowest", site.lowest)
    yield from _texts("    ", "joint", site.joint)
    yield f"    why: {quote(site.why)}"


def _slot_list(slots: Sequence[Slot]) -> str:
    return "[" + ", ".join(f"{{ubatch: {s.ubatch}, lane: {s.lane}}}" for s in slots) + "]"


def _tail(config: ReserveConfig) -> Iterator[str]:
    cost = config.cost
    yield ""
    yield "# What it costs on each rank, beyond what profiling counts without it."
    yield "cost:"
    yield f"  bytes: {cost.bytes}  # {human(cost.bytes)}"
    yield f"  tokens: {_scalar(cost.tokens)}  # KV-cache tokens lost"
    yield f"  blocks: {_scalar(cost.blocks)}"
    yield f"  counted: {_scalar(cost.counted)}  # false: a fixed KV size pays for nothing"
    yield f"  note: {quote(cost.note)}"
    yield ""
    yield "# Needs that bytes in an arena cannot meet."
    if not config.not_covered:
        yield "not_covered: []"
        return
    yield "not_covered:"
    for item in config.not_covered:
        yield from _not_covered(item)


def _not_covered(item: NotCovered) -> Iterator[str]:
    yield f"  - site: {quote(item.site)}"
    yield f"    why: {quote(item.why)}"
    yield f"    what_helps: {quote(item.what_helps)}"


def _mapping(indent: str, name: str, values: Mapping[str, Limit]) -> Iterator[str]:
    if not values:
        yield f"{indent}{name}: {{}}"
        return
    yield f"{indent}{name}:"
    for key, value in values.items():
        plain = key if _PLAIN_KEY.fullmatch(key) else quote(key)
        yield f"{indent}  {plain}: {_scalar(value)}"


def _texts(indent: str, name: str, values: Sequence[str]) -> Iterator[str]:
    if values:
        yield f"{indent}{name}: [{', '.join(quote(value) for value in values)}]"


def _scalar(value: Limit) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(str(item) for item in value) + "]"
    return quote(value) if isinstance(value, str) else str(value)


def quote(text: str) -> str:
    """A YAML double-quoted scalar, in ASCII, that any loader reads back exactly."""
    return '"' + _ESCAPED.sub(_escape, text) + '"'


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    code = ord(character)
    if character in '"\\':
        return "\\" + character
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
