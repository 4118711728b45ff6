"""The slicer over source alone: a tree of Python files, nothing imported.

`survey(root)` slices every get_simultaneous call of a package; `asked` follows the arguments of
one call. `Project` is the tree they work on, and what its names mean.
"""

from __future__ import annotations

from wstrace.slicer.static.project import AssignedRef, CallPlace, ClassRef, FunctionRef, Project
from wstrace.slicer.static.specs import AskedSpecs, Piece, SpecShape, asked
from wstrace.slicer.static.survey import Surveyed, survey

__all__ = [
    "AskedSpecs",
    "AssignedRef",
    "CallPlace",
    "ClassRef",
    "FunctionRef",
    "Piece",
    "Project",
    "SpecShape",
    "Surveyed",
    "asked",
    "survey",
]
