"""Sizes, sites and places as they stand in squeezed text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from wstrace.triage.extract.facts import Amount, Origin

if TYPE_CHECKING:
    from wstrace.triage.ingest.squeeze import Squeezed

_UNITS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_NUMBER: Final = r"\d[\d,]*(?:\.\d+)?"
SIZE: Final = rf"(?P<{{0}}>{_NUMBER}[KMGT]i?B)"
SITE: Final = re.compile(
    r"(?P<file>[\w.\-]+\.pyc?)(?::(?P<line>\d+))?(?::(?P<function>[\w.<>]+))?$"
)


def origin_at(squeezed: Squeezed, position: int, stream: str) -> Origin:
    """The line that holds `position`, in the process that `stream` names."""
    return Origin(squeezed.line(position).number, stream)


def amount(text: str) -> Amount:
    """A printed size. The window of bytes is half a unit of its last digit to each side."""
    number, unit = re.fullmatch(rf"({_NUMBER})([KMGT])i?B", text).groups()  # type: ignore[union-attr]
    number = number.replace(",", "")
    scale = _UNITS[unit]
    half = 0.5 * 10.0 ** -len(number.partition(".")[2]) * scale
    middle = float(number) * scale
    shown = f"{number} {text[text.index(unit) :]}"
    return Amount(shown, round(middle), max(0, int(middle - half)), int(middle + half) + 1)
