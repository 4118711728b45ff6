"""From a line of a trace to its record."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import msgspec

from wstrace.trace.records import AnyRecord

if TYPE_CHECKING:
    from collections.abc import Callable


@cache
def record_decoder() -> Callable[[bytes], AnyRecord]:
    """Reads one line of a trace; raises `UNDECODABLE` for what is no record.

    Made when first asked for: a process that writes nothing never pays for it (some 10 ms).
    """
    return msgspec.json.Decoder(AnyRecord).decode
