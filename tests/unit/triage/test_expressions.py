"""Each regular expression of triage has `# matches: SAMPLE` above it, and matches it."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import wstrace.triage

FOLDER = Path(wstrace.triage.__file__).parent
MARK = "# matches: "


def _modules() -> Iterator[tuple[ModuleType, list[str], ast.Module]]:
    for path in sorted(FOLDER.rglob("*.py")):
        text = path.read_text("utf-8")
        name = ".".join(("wstrace.triage", *path.relative_to(FOLDER).with_suffix("").parts))
        if path.name != "__init__.py":
            yield importlib.import_module(name), text.split("\n"), ast.parse(text)


def _expressions() -> Iterator[tuple[ModuleType, ast.Call, str]]:
    """(module, the call of `re.compile`, the line above it), those inside tuples too."""
    for module, lines, tree in _modules():
        for statement in tree.body:
            whole = statement.value if isinstance(statement, ast.AnnAssign) else None
            for node in ast.walk(statement):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "re.compile":
                    first = statement.lineno if whole is node else node.lineno
                    yield module, node, lines[first - 2].strip()


EXPRESSIONS = list(_expressions())


def test_the_expressions_are_found() -> None:
    assert len(EXPRESSIONS) > 100


@pytest.mark.parametrize(
    ("module", "call", "above"),
    EXPRESSIONS,
    ids=[f"{module.__name__}:{call.lineno}" for module, call, _ in EXPRESSIONS],
)
def test_an_expression_matches_its_sample(
    module: ModuleType, call: ast.Call, above: str
) -> None:
    assert above.startswith(MARK), "the line above the expression names no sample"
    pattern = eval(ast.unparse(call), vars(module))
    assert isinstance(pattern, re.Pattern)
    sample = ast.literal_eval(above.removeprefix(MARK))
    assert sample
    assert pattern.search(sample)
