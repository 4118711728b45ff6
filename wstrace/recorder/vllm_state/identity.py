"""Which of vLLM's classes shape a request: what a rule is chosen by, not by a size that fits.

Read once a novel request, from the caller's `self`: class names only.
"""

from __future__ import annotations

from types import FrameType
from typing import Any, Final

_PARTS: Final = ("fused_experts", "prepare_finalize", "quant_method", "quant_config")
"""Attributes of FusedMoEKernelModularImpl (0.18.1 on; FusedMoEModularKernel before) and of
layers, whose class decides shapes."""
_SHAPES: Final = ("workspace_shapes", "make_workspaces")
"""Methods of experts that say the shapes (FusedMoEExpertsModular from 0.13.0; Humming's)."""
_MOST_BASES: Final = 8


def classes_of(frame: FrameType) -> dict[str, list[str]]:
    """The class of the caller's `self` and of its parts, each before its bases."""
    owner = frame.f_locals.get("self")
    if owner is None:
        return {}
    parts = {"caller": owner} | {name: _part(owner, name) for name in _PARTS}
    return {name: names_of(part) for name, part in parts.items() if part is not None}


def names_of(value: Any) -> list[str]:
    """The names of a value's class and its bases, the nearest first, without `object`.

    Experts end at the class that says the shapes: what its bases would have said counts no
    more, and a rule for one of them is not theirs.
    """
    names: list[str] = []
    for kind in type(value).__mro__[:-1][:_MOST_BASES]:
        names.append(kind.__name__)
        if any(method in vars(kind) for method in _SHAPES):
            break
    return names


def _part(owner: Any, name: str) -> Any:
    """The attribute as it is stored, no property run; a module keeps its children apart."""
    fields = getattr(owner, "__dict__", None)
    if not isinstance(fields, dict):
        return None
    return fields.get(name) or fields.get("_modules", {}).get(name)
