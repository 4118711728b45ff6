from __future__ import annotations

from tests.unit.slicer.fakes import worker

__all__ = ["worker"]
