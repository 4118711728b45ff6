"""What vLLM's WorkspaceManager does with a request, as far as its size goes.

vLLM 0.13.0 to 0.33.0: `get_simultaneous` rounds each tensor of a request up; their
sum is what it asks for.
"""

from __future__ import annotations

from typing import Final

FILE: Final = "v1/worker/workspace.py"
"""The manager's file, below the package."""
ALIGNMENT: Final = 256
"""Bytes."""


def aligned(size: int) -> int:
    """`size` bytes as the arena has them for one buffer."""
    return -(-size // ALIGNMENT) * ALIGNMENT
