"""Every name at the top of a module, and every parameter, is used by the program, or says who
else uses it."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from tests.sources import ROOT, files, nodes, tree

# What somebody else reads by name: a pattern, and who.
READ_ELSEWHERE: Final = {
    "wstrace.cli.commands.*.command": "wstrace.cli.app imports a command when it is asked for",
    "wstrace.cli.app._root": "typer",
    "wstrace.pytest_plugin.pytest_*": "pytest",
    "wstrace.pytest_plugin.wstrace_recorder": "pytest: a fixture that a test names",
    "wstrace.recorder.plugin.register": "vLLM, by the entry point in pyproject.toml",
    "wstrace.testbed.plugin.register": "vLLM, by the entry point in testbed/on_path",
    "wstrace.testbed.patterns.*": "the testbed, as MODULE:CLASS of an option",
    "tools.bench.layers.Layer": "tools.bench.first_request, which runs the file as a module",
    "tools.docs.mkdocs_hook.on_page_markdown": "mkdocs, by mkdocs.yml",
    "tools.gpu.conftest.pytest_*": "pytest",
    "tools.gpu.test_results.*": "pytest",
    "tools.gpu.extension.Extension": "vLLM, by --worker-extension-cls",
}

# A function's parameters that its body does not read, and who gives them.
GIVEN_BY_OTHERS: Final = {
    "find_spec": "importlib, by position",
    "_continuation_prefill": "vLLM's method of this name has them",
}


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def defined(path: Path) -> Iterator[str]:
    """The names that a module makes at its top."""
    for node in tree(path).body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Assign(targets=targets):
                yield from (t.id for t in targets if isinstance(t, ast.Name))


def loads(path: Path) -> set[str]:
    """The names that a module reads, its definitions' own bodies not counted for themselves."""
    found: set[str] = set()
    for top in tree(path).body:
        own = getattr(top, "name", None)
        for node in ast.walk(top):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                found |= {node.id} - {own}
    return found


def taken(path: Path) -> Iterator[tuple[str, str]]:
    """(module, name) that a file takes from modules: imported, or as an attribute of one."""
    modules: dict[str, str] = {}
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield node.module, alias.name
                modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                modules[alias.asname or alias.name] = alias.name
    for node in nodes(path):
        if isinstance(node, ast.Attribute):
            base = _dotted(node.value)
            if base in modules:
                yield modules[base], node.attr


def _dotted(node: ast.expr) -> str:
    """`a.b.c` as it is written; empty for anything else."""
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return before and f"{before}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def unused(*users: str) -> list[str]:
    """`module.name` of the program and its tools that none of `users` reads."""
    everywhere = {pair for path in files(*users) for pair in taken(path)}
    found = []
    for path in files("wstrace", "tools"):
        module, here = module_of(path), loads(path)
        for name in defined(path):
            used = name in here or (module, name) in everywhere
            if not used and not re.fullmatch(r"__\w+__", name):
                found.append(f"{module}.{name}")
    return found


def test_no_name_is_there_for_nothing() -> None:
    """A name that only tests read is one too: it belongs to the tests."""
    dead = unused("wstrace", "tools")
    reasons = {
        name: [pattern for pattern in READ_ELSEWHERE if fnmatchcase(name, pattern)]
        for name in dead
    }
    assert [name for name, patterns in reasons.items() if not patterns] == []
    used = {pattern for patterns in reasons.values() for pattern in patterns}
    assert set(READ_ELSEWHERE) - used == set(), "a reason for nothing"


Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions() -> Iterator[tuple[Path, Function]]:
    for path in files("wstrace", "tools"):
        for node in nodes(path):
            if isinstance(node, Function):
                yield path, node


def read_as_values() -> set[str]:
    """Names that stand without a call: such a function has the parameters of its table."""
    found: set[str] = set()
    for path in files("wstrace", "tools"):
        called = {id(node.func) for node in nodes(path) if isinstance(node, ast.Call)}
        for node in nodes(path):
            if isinstance(node, ast.Name | ast.Attribute) and id(node) not in called:
                found.add(node.id if isinstance(node, ast.Name) else node.attr)
    return found


def does_something(function: Function) -> bool:
    """Not a protocol's: more than its docstring."""
    return any(not isinstance(getattr(s, "value", None), ast.Constant) for s in function.body)


def idle_parameters(function: Function) -> list[str]:
    body = [node for statement in function.body for node in ast.walk(statement)]
    read = {node.id for node in body if isinstance(node, ast.Name)}
    given = function.args
    names = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return [n for n in names if n not in read | {"self", "cls"} and not n.startswith("_")]


def test_no_parameter_is_there_for_nothing() -> None:
    """Of functions that are called by their one name; several of a name share a form."""
    values = read_as_values()
    several = Counter(function.name for _, function in functions())
    idle = {
        function.name: [f"{module_of(path)}.{function.name}: {name}" for name in names]
        for path, function in functions()
        if several[function.name] == 1
        and function.name not in values
        and not function.decorator_list
        and does_something(function)
        and (names := idle_parameters(function))
    }
    assert [told for name in idle.keys() - GIVEN_BY_OTHERS for told in idle[name]] == []
    assert GIVEN_BY_OTHERS.keys() - idle == set(), "a reason for nothing"
