"""Each regular expression of the package and of its tools has `# matches: SAMPLE` above it, and
matches it."""

from __future__ import annotations

import ast
import functools
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from tests.sources import ROOT, files, tree

MARK = "# matches: "
FINDING = {"search", "match", "fullmatch", "findall", "finditer"}
CALLS = FINDING | {"compile", "sub", "subn", "split"}
CALL = re.compile(r"\bre\.\w")  # nothing else makes a tree of the text worth its time


class Expression(NamedTuple):
    """The call that has an expression as text, and the samples in the lines above it."""

    module: ModuleType
    call: ast.Call
    above: tuple[str, str]


@functools.cache
def expressions(path: Path) -> list[Expression]:
    """Those of one module."""
    text = (ROOT / path).read_text("utf-8")
    found = list(_calls(tree(ROOT / path))) if CALL.search(text) else []
    if not found:
        return []
    module = importlib.import_module(".".join(path.with_suffix("").parts))
    lines = ["", *text.split("\n")]
    return [
        Expression(
            module, call, (lines[call.lineno - 1].strip(), lines[statement.lineno - 1].strip())
        )
        for call, statement in found
    ]


def _calls(
    within: ast.AST, statement: ast.stmt | None = None
) -> Iterator[tuple[ast.Call, ast.stmt]]:
    """Each call with the innermost statement that it stands in."""
    for node in ast.iter_child_nodes(within):
        if isinstance(node, ast.Call) and statement is not None and _is_expression(node):
            yield node, statement
        yield from _calls(node, node if isinstance(node, ast.stmt) else statement)


def _is_expression(call: ast.Call) -> bool:
    match call.func:
        case ast.Attribute(ast.Name("re"), name) if name in CALLS:
            return True
    return False


def compiled(found: Expression) -> re.Pattern[str]:
    """The expression with its flags, in its module's names."""
    call = found.call
    if ast.unparse(call.func) != "re.compile":
        flags = [ast.unparse(k.value) for k in call.keywords if k.arg == "flags"]
        text = f"re.compile({', '.join([ast.unparse(call.args[0]), *flags])})"
    else:
        text = ast.unparse(call)
    pattern = eval(text, vars(found.module))
    assert isinstance(pattern, re.Pattern)
    return pattern


FILES = [path.relative_to(ROOT) for path in files("wstrace", "tools")]


def test_the_expressions_are_found() -> None:
    found = [one for path in FILES for one in expressions(path)]
    assert len(found) > 150
    rooms = {".".join(one.module.__name__.split(".")[:2]) for one in found}
    assert rooms >= {"wstrace.triage", "wstrace.safe_texts", "wstrace.cli", "tools.gpu"}


@pytest.mark.parametrize("file", FILES, ids=str)
def test_each_expression_of_a_file_matches_its_sample(file: Path) -> None:
    for found in expressions(file):
        where = f"{file}:{found.call.lineno}"
        marked = [line for line in found.above if line.startswith(MARK)]
        assert marked, f"{where}: the line above the expression names no sample"
        sample = ast.literal_eval(marked[0].removeprefix(MARK))
        assert sample, where
        assert compiled(found).search(sample), where
