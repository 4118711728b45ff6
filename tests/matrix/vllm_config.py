"""The fields of a release's VllmConfig, read from its source: nothing of vLLM is imported."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace

from wstrace.versions import release_of
from wstrace.vllm.number import Number

Fields = dict[str, dict[str, str]]
"""A class of vllm/config to its fields, each with its annotation."""


@cache
def fields(sources: Path) -> Fields:
    """Of all config classes of the release whose `vllm` folder lies in `sources`."""
    files = sorted((sources / "vllm" / "config").glob("*.py"))
    trees = [ast.parse(file.read_text("utf-8")) for file in files]
    classes = [node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    assert any(node.name == "VllmConfig" for node in classes), f"no VllmConfig in {sources}"
    return {node.name: _annotated(node) for node in classes}


def _annotated(node: ast.ClassDef) -> dict[str, str]:
    return {
        item.target.id: ast.unparse(item.annotation)
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }


def lacks(sources: Path, path: str) -> str:
    """The part of a path below VllmConfig that this release does not have; "" for none."""
    known, annotation = fields(sources), "VllmConfig"
    for part in path.split("."):
        classes = [known[name] for name in re.findall(r"\w+", annotation) if name in known]
        holding = [held[part] for held in classes if part in held]
        if not holding:
            return f"{annotation}.{part}"
        annotation = holding[0]
    return ""


def stand_in(sources: Path, of: str = "VllmConfig") -> SimpleNamespace:
    """An object with the fields of this release's config: each leaf is its own name."""
    made = SimpleNamespace()
    for name, annotation in fields(sources)[of].items():
        words = re.findall(r"\w+Config\b", annotation)
        below = [word for word in words if word in fields(sources) and word != of]
        leaf = f"{of}.{name}"
        setattr(made, name, stand_in(sources, below[0]) if below else leaf)
    return made


@cache
def environment(sources: Path) -> frozenset[str]:
    """The variables that the release's envs.py reads."""
    tree = ast.parse((sources / "vllm" / "envs.py").read_text("utf-8"))
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return frozenset(t for t in texts if isinstance(t, str) and re.fullmatch(r"VLLM_\w+", t))


def newest_place(row: Number, sources: Path, version: str) -> str:
    """What a row's first path, the newest, says of this release, the newest, that is not so; ""
    where it is. An older path that vLLM still has would hide it from `moved`."""
    gone = row.until and release_of(version).has(row.until)
    lacking = lacks(sources, row.config[0]) if row.config and not gone else ""
    told = f"{row.name}: vLLM {version} has no {lacking}, where the row's first path says it is"
    return told if lacking else ""


def moved(row: Number, sources: Path, version: str) -> str:
    """What the row says of this release that is not so; "" where all of it is.

    A row with `since` or `until` says also that the releases beyond do not have it.
    """
    lacking = [lacks(sources, path) for path in row.config]
    if row.env:
        known = row.env in environment(sources)
        lacking.append("" if known else f"environment {row.env}")
    held = "" in lacking
    release = release_of(version)
    within = release.has(row.since) and not (row.until and release.has(row.until))
    if held and not within:
        return f"{row.name}: vLLM {version} has it, but the row's since or until says not"
    if within and not held:
        return f"{row.name}: vLLM {version} has no {' and no '.join(lacking)}"
    return ""
