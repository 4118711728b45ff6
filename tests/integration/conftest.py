"""Fixtures of the tests that start a real vLLM."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.engine import MISSING, engine_prefix, engine_required
from wstrace.testbed.engine import Server, engine_env
from wstrace.testbed.model import build_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


HANG_SECONDS = 2700
"""A start takes 20 s on an idle machine and 10 minutes on a busy one. `Server` ends a start
that stands still; this ends what nothing else does."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Engine tests may be as slow as the machine is busy."""
    for item in items:
        if item.get_closest_marker("engine") is not None:
            item.add_marker(pytest.mark.timeout(HANG_SECONDS))


@pytest.fixture(scope="session")
def engine() -> Path:
    """The virtual environment that holds vLLM."""
    prefix = engine_prefix()
    if prefix is None:
        if engine_required():
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    return prefix


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's folder."""
    return build_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def serve(engine: Path, model: Path, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """`serve(patterns, *arguments, before=[], env={})`: a ready Server, stopped at the end."""
    with ExitStack() as stack:

        def start(
            patterns: str,
            *arguments: str,
            before: list[str] | None = None,
            env: dict[str, str] | None = None,
            **fields: Any,
        ) -> Server:
            server = Server(
                model,
                tmp_path / "serve.log",
                arguments=arguments,
                before=before or [],
                env=engine_env(patterns, prefix=engine) | (env or {}),
                prefix=engine,
                **fields,
            )
            return stack.enter_context(server)

        yield start
