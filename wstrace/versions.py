"""The vLLM releases whose sources wstrace was checked against."""

from __future__ import annotations

from typing import Final

CHECKED_FROM: Final = "0.13.0"
CHECKED_WITH: Final = "0.33.0"
"""The newest; docs/compatibility.md has the releases in between."""
