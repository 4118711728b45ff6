"""`pytest tools/gpu --results UNPACKED ...`: where the results are."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--results` may be given several times."""
    parser.addoption("--results", action="append", type=Path, default=[], metavar="UNPACKED")
