"""The reserve config: what the recorder and the planner need, in one place.

Importing this loads only the standard library, msgspec, and wstrace's formula and trace
packages; PyYAML is loaded by `load_reserve` alone, because this runs inside vLLM's workers.
"""

from __future__ import annotations

from wstrace.reserve.evaluate import SlotBytes, evaluate, mismatch
from wstrace.reserve.reader import load_reserve
from wstrace.reserve.schema import (
    Cost,
    Model,
    NotCovered,
    ReserveConfig,
    SiteReserve,
    SlotReserve,
    layout,
    model_digest,
)
from wstrace.reserve.writer import dumps

__all__ = [
    "Cost",
    "Model",
    "NotCovered",
    "ReserveConfig",
    "SiteReserve",
    "SlotBytes",
    "SlotReserve",
    "dumps",
    "evaluate",
    "layout",
    "load_reserve",
    "mismatch",
    "model_digest",
]
