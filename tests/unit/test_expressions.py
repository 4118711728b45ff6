"""Each regular expression of the package has `# matches: SAMPLE` above it, and matches it."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

import wstrace

FOLDER = Path(wstrace.__file__).parent
MARK = "# matches: "
FINDING = {"search", "match", "fullmatch", "findall", "finditer"}
CALLS = FINDING | {"compile", "sub", "subn", "split"}


class Expression(NamedTuple):
    """The call that has an expression as text, and the samples in the lines above it."""

    module: ModuleType
    call: ast.Call
    above: tuple[str, str]


def expressions(path: Path) -> Iterator[Expression]:
    """Those of one module; what is passed by name has its sample where it is compiled."""
    text = path.read_text("utf-8")
    if "re." not in text:
        return
    found = list(_calls(ast.parse(text)))
    if not found:
        return
    parts = path.relative_to(FOLDER).with_suffix("").parts
    module = importlib.import_module(".".join(("wstrace", *parts)))
    lines = ["", *text.split("\n")]
    for call, statement in found:
        above = (lines[call.lineno - 1].strip(), lines[statement.lineno - 1].strip())
        yield Expression(module, call, above)


def _calls(
    tree: ast.AST, statement: ast.stmt | None = None
) -> Iterator[tuple[ast.Call, ast.stmt]]:
    """Each call with the innermost statement that it stands in."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call) and statement is not None and _is_expression(node):
            yield node, statement
        yield from _calls(node, node if isinstance(node, ast.stmt) else statement)


def _is_expression(call: ast.Call) -> bool:
    match call.func:
        case ast.Attribute(ast.Name("re"), name) if name in CALLS:
            return not isinstance(call.args[0], ast.Name)
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


FOUND = [one for path in sorted(FOLDER.rglob("*.py")) for one in expressions(path)]


def test_the_expressions_are_found() -> None:
    assert len(FOUND) > 130
    assert {one.module.__name__.split(".")[1] for one in FOUND} >= {"triage", "trace", "cli"}


@pytest.mark.parametrize(
    "found", FOUND, ids=[f"{one.module.__name__}:{one.call.lineno}" for one in FOUND]
)
def test_an_expression_matches_its_sample(found: Expression) -> None:
    marked = [line for line in found.above if line.startswith(MARK)]
    assert marked, "the line above the expression names no sample"
    sample = ast.literal_eval(marked[0].removeprefix(MARK))
    assert sample
    assert compiled(found).search(sample)
