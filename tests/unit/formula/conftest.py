from __future__ import annotations

from tests.unit.formula.fakes import worker

__all__ = ["worker"]
