"""A copy of an engine without one reservation: what vLLM was before it had it.

The patch is made on the host, from the engine's own file: the statement that asks for
workspace in the warm-up branch of a function (the branch that returns) is replaced by `pass`.
Nothing of vLLM's source is kept here; which lines went stands in scenario.json.
"""

from __future__ import annotations

import ast
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from wstrace.errors import WstraceError

# DeepSeek-V4's attention reserves in the dummy run since vLLM 0.22.
DEEPSEEK_V4: Final = ("vllm/models/deepseek_v4/nvidia/flashmla.py", "forward_mqa")
ASKS: Final = "get_simultaneous"


@dataclass(frozen=True)
class Removed:
    """The lines of `file` that were taken out, the first and the last."""

    file: str
    first: int
    last: int


def without_reservation(engine_root: Path, to: Path, file: str, function: str) -> Removed:
    """`engine_root` at `to` (hard links), with the reservation of `function` in `file` gone.

    Raises WstraceError where the file has no such statement, or more than one.
    """
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(engine_root, to, copy_function=os.link, symlinks=True)
    target = to / "engine" / file
    source = target.read_text()
    statement = reservation_in(source, function)
    if statement is None:
        raise WstraceError(
            f"{file} has no single reservation in {function}.",
            "This engine is not the one that the scenario was written for.",
        )
    last = statement.end_lineno or statement.lineno
    lines = source.splitlines(keepends=True)
    indent = " " * statement.col_offset
    lines[statement.lineno - 1 : last] = [f"{indent}pass\n"]
    target.unlink()  # the hard link's other name keeps the original
    target.write_text("".join(lines))
    return Removed(file, statement.lineno, last)


def reservation_in(source: str, function: str) -> ast.stmt | None:
    """The one bare request in a branch of `function` that ends in `return`."""
    found = [
        statement
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name == function
        for branch in ast.walk(node)
        if isinstance(branch, ast.If) and isinstance(branch.body[-1], ast.Return)
        for statement in branch.body
        if _asks(statement)
    ]
    return found[0] if len(found) == 1 else None


def _asks(statement: ast.stmt) -> bool:
    """`current_workspace_manager().get_simultaneous(...)` whose result nobody takes."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and isinstance(statement.value.func, ast.Attribute)
        and statement.value.func.attr == ASKS
    )
