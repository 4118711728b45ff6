"""Which vLLM layers escaped workspace profiling, why, and the reserve that fixes them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from wstrace.errors import WstraceError

if TYPE_CHECKING:
    from wstrace.api import Trace, load
    from wstrace.recorder.record import record

__version__ = "0.1.0"
__all__ = ["Trace", "WstraceError", "__version__", "load", "record"]
_HOMES: Final = {
    "Trace": "wstrace.api",
    "load": "wstrace.api",
    "record": "wstrace.recorder.record",
}


def __getattr__(name: str) -> Any:
    """Public names on first use, so that importing wstrace costs next to nothing."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'wstrace' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
