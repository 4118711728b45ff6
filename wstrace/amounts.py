"""Amounts that are a number or a share: `8`, `64MiB`, `10%`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from wstrace.errors import WstraceError
from wstrace.units import parse_bytes

# matches: "12.5 %"
_PERCENT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")


@dataclass(frozen=True)
class Amount:
    """A plain number, or a share of something (1/10 for `10%`)."""

    number: int = 0
    share: Fraction | None = None

    def of(self, whole: int) -> int:
        """The number, or the share of `whole`, rounded down."""
        return self.number if self.share is None else int(whole * self.share)

    def __str__(self) -> str:
        return f"{self.number:,}" if self.share is None else f"{float(self.share):.0%}"


def parse_amount(text: str) -> Amount:
    """`10%`, `4096`, `64MiB`. Raises WstraceError (exit 2) for anything else."""
    match = _PERCENT.fullmatch(text)
    if match:
        return Amount(share=Fraction(match[1]) / 100)
    try:
        return Amount(parse_bytes(text))
    except WstraceError as error:
        raise WstraceError(
            f"Not a number or a share: {text!r}.", "Write it as 4096, 64MiB or 50%."
        ) from error
