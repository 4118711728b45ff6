"""The prompts of each server, tokens in the order sent: for scenarios and their claims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class AtOnce:
    """Prompts of these lengths, tokens, sent at the same time."""

    lengths: tuple[int, ...]


# What a server is asked, one after the other: a length, the tokens, or several at once.
Prompts = Sequence[int | Sequence[int] | AtOnce]

PREFIXES: Final = (1000, 9000, 11000, 14000)
BUILDER: Final = (1000, 9000, 30000)
MOE: Final = (16, 500, 4000, 12000)
PARALLEL: Final = (1000, 9000, 30000)
PARALLEL_CURED: Final = (9000, 32760)
LATENT: Final = (500, 6000)
DCP: Final = (4, 1000, 6000)
