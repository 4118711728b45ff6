"""The project's own sources as trees, each parsed once for all tests that look at them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]


def files(*tops: str) -> Iterator[Path]:
    """The Python files below some folders of the project."""
    for top in tops:
        yield from sorted((ROOT / top).rglob("*.py"))


@cache
def tree(path: Path) -> ast.Module:
    """A file, parsed."""
    return ast.parse(path.read_text("utf-8"))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Every node of a file, a parent before its children."""
    return tuple(ast.walk(tree(path)))
