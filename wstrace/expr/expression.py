"""The integer expression language of formulas, bounds and reserve configs.

Integers, names, `+ - * // %`, unary minus, and the functions min, max, ceil_div, round_up,
round256 and next_pow2; nothing else. Text is read through Python's parser and a whitelist
of its nodes; it is never run. Division and modulo round down, as Python's do.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NoReturn

from wstrace.expr import tree
from wstrace.expr.tree import BIGGEST, Const, FormulaError, Node, Variable

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BIGGEST", "Expression", "FormulaError", "parse"]

MAX_LENGTH: Final = 16384
MAX_DEPTH: Final = 150
# the grammar has names, integers, + - * / % and calls
# matches: "a;b"
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9_+\-*/%(), \t\r\n]")
_BINARY: Final[Mapping[type[ast.operator], str]] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Mod: "%",
}
_ALLOWED: Final = "formulas know integers, names, + - * // %, " + ", ".join(tree.FUNCTIONS)


@dataclass(frozen=True)
class Expression:
    """A formula. Equal trees are equal expressions; `str()` is canonical and reads back."""

    root: Node

    @property
    def names(self) -> frozenset[str]:
        """The names that `evaluate` needs."""
        return tree.names(self.root)

    def evaluate(self, values: Mapping[str, int]) -> int:
        """The value for `values`, which may hold more names than needed.

        FormulaError: a name is missing or no integer, a division by zero, or a value (also
        an intermediate one) above 2^63.
        """
        return tree.evaluate(self.root, values)

    def substitute(self, mapping: Mapping[str, int | str | Expression]) -> Expression:
        """Names replaced by integers, texts or expressions, all at once."""
        nodes = {name: _node(value) for name, value in mapping.items()}
        return Expression(tree.substitute(self.root, nodes))

    def __str__(self) -> str:
        return tree.text(self.root)


def _node(value: int | str | Expression) -> Node:
    if isinstance(value, Expression):
        return value.root
    return parse(value).root if isinstance(value, str) else Const(int(value))


@lru_cache(maxsize=4096)
def parse(text: str) -> Expression:
    """Read a formula. FormulaError carries the position of what is not understood."""
    if len(text) > MAX_LENGTH:
        raise FormulaError(
            f"the formula has {len(text)} characters",
            f"at most {MAX_LENGTH} are read",
            MAX_LENGTH,
        )
    foreign = _FOREIGN.search(text)
    if foreign:
        _refuse(text, foreign.start(), f"{foreign.group()!r} is not part of a formula")
    # matches: "a +\n b"
    flat = re.sub(r"[\t\r\n]", " ", text)
    indent = len(flat) - len(flat.lstrip())
    return Expression(_Reader(text, indent).read(_python(flat, indent), 0))


def _python(flat: str, indent: int) -> ast.expr:
    try:
        return ast.parse(flat.strip(), mode="eval").body
    except SyntaxError as error:
        position = max(0, (error.offset or 1) - 1 + indent)
        _refuse(flat, position, error.msg or "not a formula")
    except (ValueError, RecursionError, MemoryError):
        _refuse(flat, 0, "nested too deeply, or a number with too many digits")


def _refuse(text: str, position: int, why: str) -> NoReturn:
    from wstrace.safe_texts.redact import redact_text

    text = redact_text(text)  # before the cut, which would hide a secret from the patterns only
    shown = text if len(text) <= 60 else text[:57] + "..."
    raise FormulaError(f"{why} (at character {position + 1} of '{shown}')", _ALLOWED, position)


class _Reader:
    def __init__(self, text: str, indent: int) -> None:
        self.text = text
        self.indent = indent

    def read(self, node: ast.expr, depth: int) -> Node:
        if depth > MAX_DEPTH:
            self.fail(node, f"nested more than {MAX_DEPTH} deep")
        if isinstance(node, ast.Constant):
            return self.literal(node)
        if isinstance(node, ast.Name):
            return self.name(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return tree.make("neg", self.read(node.operand, depth + 1))
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            sides = (self.read(side, depth + 1) for side in (node.left, node.right))
            return self.made(node, _BINARY[type(node.op)], *sides)
        if isinstance(node, ast.Call) and not node.keywords:
            return self.call(node, depth)
        return self.fail(node, f"{type(node).__name__} is not part of a formula")

    def literal(self, node: ast.Constant) -> Node:
        if isinstance(node.value, bool) or not isinstance(node.value, int):
            self.fail(node, f"{node.value!r} is not an integer")
        if node.value > BIGGEST:
            self.fail(node, "a number larger than 2^63")
        return Const(node.value)

    def name(self, node: ast.Name) -> Node:
        if node.id in tree.FUNCTIONS:
            self.fail(node, f"{node.id} is a function: write {node.id}(...)")
        return Variable(node.id)

    def call(self, node: ast.Call, depth: int) -> Node:
        if not isinstance(node.func, ast.Name) or node.func.id not in tree.FUNCTIONS:
            self.fail(node, "an unknown function")
        least, most = tree.FUNCTIONS[node.func.id]
        if len(node.args) < least or (most is not None and len(node.args) > most):
            self.fail(
                node, f"{node.func.id} takes {least if most else 'one or more'} arguments"
            )
        args = [self.read(arg, depth + 1) for arg in node.args]
        return self.made(node, node.func.id, *args)

    def made(self, node: ast.expr, op: str, *args: Node) -> Node:
        if all(isinstance(a, Const) for a in args):
            try:
                tree.apply(op, [a.value for a in args if isinstance(a, Const)])
            except FormulaError as error:
                self.fail(node, error.message)
        return tree.make(op, *args)

    def fail(self, node: ast.expr, why: str) -> NoReturn:
        _refuse(self.text, node.col_offset + self.indent, why)
