"""Which vLLM layers escaped workspace profiling, why, and the reserve that fixes them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from wstrace.errors import WstraceError

if TYPE_CHECKING:
    from wstrace.recorder.record import record

__version__ = "0.1.0"
__all__ = ["WstraceError", "__version__", "record"]


def __getattr__(name: str) -> Any:
    """`wstrace.record` on first use, so that importing wstrace costs next to nothing."""
    if name == "record":
        return import_module("wstrace.recorder.record").record
    raise AttributeError(f"module 'wstrace' has no attribute {name!r}")
