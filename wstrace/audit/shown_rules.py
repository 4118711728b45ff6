"""For which source the rule of a known site was shown.

A rule stands in for a request that the slicer cannot follow. It was made for the code of some
releases; an edited request is another one. So each rule has digests of the code that it was
held against (`rule_sources.json`, written by `python -m tools.rule_sources`): of the functions
that the slices of the request and its reservation went through, and of those that set what they
could not follow.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final

from wstrace.slicer.static import AskedSpecs, Project
from wstrace.slicer.syntax import FunctionSource, functions

FILE: Final = Path(__file__).with_name("rule_sources.json")
# Fields of syntax trees that say nothing of what runs, or that came with a later Python.
_SILENT: Final = ("ctx", "kind", "type_comment", "type_params", "returns", "annotation")
_FEW: Final = 8


@cache
def _table() -> dict[str, list[str]]:
    found: dict[str, list[str]] = json.loads(FILE.read_text())
    return found


def shown_for(rule: str, digest: str) -> bool:
    """Whether a rule was held against the code with this digest."""
    return digest in _table().get(rule, ())


def digest_of(both: Sequence[AskedSpecs], project: Project) -> str:
    """A digest of the code that the sizes of a request and its reservation rest on, as far as
    it is known."""
    every = [s for asked in both for s in (*asked.followed, *_setters(asked, project))]
    texts = sorted({f"{source.qualname} {' '.join(_words(source.node))}" for source in every})
    return sha256("\n".join(texts).encode()).hexdigest()[:16]


def _setters(asked: AskedSpecs, project: Project) -> Iterator[FunctionSource]:
    """The functions that set the fields for which the slice found no quantity."""
    open_leaves = (leaf for leaf in asked.leaves.values() if leaf.kind == "unbound")
    words = {leaf.source.rpartition(".")[2] for leaf in open_leaves}
    for word in sorted(w for w in words if w.isidentifier()):
        modules = project.mentioning(word)
        for module in modules if len(modules) <= _FEW else ():
            tree = project.tree(module)
            for node, owner in functions(tree) if tree else ():
                if any(_sets(n, word) for n in ast.walk(node)):
                    yield project.source(module, node, owner)


def _sets(node: ast.AST, word: str) -> bool:
    if isinstance(node, ast.keyword):
        return node.arg == word
    stored = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    return stored and isinstance(node, ast.Attribute) and node.attr == word


def _words(node: ast.AST) -> Iterator[str]:
    """A tree as words: without its layout, its comments and its documentation."""
    yield type(node).__name__
    for name, value in ast.iter_fields(node):
        if name in _SILENT:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                if not _documents(child):
                    yield from _words(child)
            elif child is not None:
                yield repr(child)


def _documents(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
