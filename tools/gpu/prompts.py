"""The prompts of each server, tokens in the order sent: for scenarios and their claims."""

from __future__ import annotations

from typing import Final

PREFIXES: Final = (1000, 9000, 11000, 14000)
BUILDER: Final = (1000, 9000, 30000)
MOE: Final = (16, 500, 4000, 12000)
PARALLEL: Final = (1000, 9000, 30000)
PARALLEL_CURED: Final = (9000, 32760)
LATENT: Final = (500, 6000)
DCP: Final = (4, 1000, 6000)
