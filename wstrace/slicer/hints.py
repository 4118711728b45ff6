"""What a function's own assertions and annotations say about the class of a local."""

from __future__ import annotations

import ast

from wstrace.slicer.source import FunctionSource


def asserted_class(source: FunctionSource, name: str) -> ast.expr | None:
    """The class expression of `assert isinstance(name, X)`, `name: X`, or `cast(X, ...)`."""
    for node in ast.walk(source.node):
        if isinstance(node, ast.Assert):
            found = _isinstance(node.test, name)
        elif isinstance(node, ast.AnnAssign):
            found = node.annotation if _named(node.target, name) else None
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            found = _cast(node.value) if _named(node.targets[0], name) else None
        else:
            continue
        if found is not None:
            return found
    return None


def _isinstance(test: ast.expr, name: str) -> ast.expr | None:
    if isinstance(test, ast.BoolOp):
        parts = [_isinstance(value, name) for value in test.values]
        return next((p for p in parts if p is not None), None)
    if not (isinstance(test, ast.Call) and isinstance(test.func, ast.Name)):
        return None
    if test.func.id != "isinstance" or not _named(test.args[0], name):
        return None
    kind = test.args[1]
    return kind.elts[0] if isinstance(kind, ast.Tuple) else kind


def _cast(call: ast.Call) -> ast.expr | None:
    if isinstance(call.func, ast.Name) and call.func.id == "cast" and len(call.args) == 2:
        return call.args[0]
    return None


def _named(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
