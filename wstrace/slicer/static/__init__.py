"""The slicer over source alone: a tree of Python files, nothing imported.

`survey(root)` slices every get_simultaneous call of a package; all else here is its own.
"""

from __future__ import annotations

from wstrace.slicer.static.survey import Surveyed, survey

__all__ = ["Surveyed", "survey"]
