"""Options for all tests."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# Else the examples are the same in each run (profile `ci`): an old fault that one of them
# happens to find would stop somebody else's change.
settings.register_profile("drawn", deadline=None, print_blob=True)

GOLD = Path(__file__).parent / "gold"


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-gold` rewrites the golden files instead of comparing with them."""
    parser.addoption("--update-gold", action="store_true", help="rewrite tests/gold")


def pytest_collection_finish(session: pytest.Session) -> None:
    """What was imported and collected stays to the end: no collection of garbage looks at it
    again. With 8,000 tests and torch one look takes half a second, and some tests take 14."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def gold(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`gold(name, text)`: compare with tests/gold/NAME, or rewrite it."""

    def check(name: str, text: str) -> None:
        path = GOLD / name
        if request.config.getoption("--update-gold"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.read_text(encoding="utf-8") == text, f"tests/gold/{name}: --update-gold"

    return check
