"""A stranger finds the file: rooms are listed, steps name real files, one name is one thing."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.sources import nodes, tree
from wstrace.vllm.limits import rows

ROOT: Final = Path(__file__).resolve().parents[2]
GUIDE: Final = (ROOT / "CONTRIBUTING.md").read_text()
TASKS: Final = (
    "A finding code",
    "A rule for a kernel",
    "A release of vLLM",
    "A log format",
    "A number of the config",
    "A column of a report",
    "A column of the tables",
)

# Modules that share their name on purpose. A command's module is named after its command, so
# it may also be the name of what it calls; these are the others.
SHARED_MODULES: Final = {
    "limits": "limits of the engine, and limits that a person sets for the gate",
    "settings": "each process reads its own variables",
    "worker": "vLLM's worker: its hooks, its part of a trace, the testbed's",
    "plugin": "vLLM loads both by this name of an entry point",
    "writer": "a trace is written record by record, a reserve as a whole",
    "reader": "of the two file formats",
    "frames": "stack frames: in a worker, in a log",
    "ranks": "ranks as a page shows them, as a log names them",
    "facts": "of a run's page, of a log",
    "phases": "vLLM's words for them, and which one a worker is in",
}
SHARED_CLASSES: Final = {
    "Refusal": "in a worker's evidence, in a log",
    "Origin": "of a size: in a page, in a log",
    "Site": "a record, and what a bound is asked of",
    "Settings": "each process's own variables",
    "Persistent": "a record, and the testbed's pattern that makes one",
    "Limits": "a record of the engine's, and a person's for the gate",
    "Model": "vLLM's API has one, and a reserve is for one",
    "Trace": "a folder's files as read, and what Python users hold",
    "Answer": "what a server said: to `exercise`, to the testbed; neither loads the other",
    "Entry": "a baseline's, a call counter's",
    "Place": "where a finding is, where a size fits",
    "Fit": "of a template, of a config on a GPU",
    "Line": "of a fit, of a log",
    "Point": "of a cost curve, of a figure",
}


# Where somebody comes in: Python, the program, pytest, vLLM (the testbed's layers by option).
DOORS: Final = (
    "wstrace", "wstrace.__main__", "wstrace.api", "wstrace.cli.app", "wstrace.pytest_plugin",
    "wstrace.recorder.plugin", "wstrace.testbed.plugin", "wstrace.testbed.patterns",
)  # fmt: skip
# Modules of more than 500 lines, and why they stay whole.
LONG: Final[dict[str, str]] = {}
# One name, several sets of words.
SHARED_ALIASES: Final = {
    "Kind": "of a number, a leaf, a finding's span, a known site, a surveyed site",
}
# What the recorder asks an object for by name outside of vllm_state: owners of methods that are
# wrapped, the two roots that vllm_state starts from, Python's and wstrace's own.
ASKED_ELSEWHERE: Final = {
    "WorkspaceManager", "_ensure_workspace_size", "CUDAGraph",
    "model_runner", "rank",
    "__spec__", "_initializing",
}  # fmt: skip


def packages(top: str) -> set[str]:
    found = (path.parent.relative_to(ROOT) for path in (ROOT / top).rglob("__init__.py"))
    return {str(path) for path in found} - {"wstrace"}


def test_the_map_of_the_rooms_is_the_tree() -> None:
    rooms = GUIDE.split("## Rooms")[1].split("\n## ")[0]
    listed = re.findall(r"`((?:wstrace|tools)[\w/]*)`", rooms)
    assert len(listed) == len(set(listed))
    assert packages("wstrace") | packages("tools") == set(listed)


@pytest.mark.parametrize("task", TASKS)
def test_each_task_names_its_files_and_they_exist(task: str) -> None:
    steps = GUIDE.split(f"### {task}\n")[1].split("\n#")[0]
    assert re.findall(r"^\d\. ", steps, re.MULTILINE)[:2] == ["1. ", "2. "]
    # `wstrace/versions.py`, `docs/findings/`
    named = re.findall(r"`((?:wstrace|tests|docs|scripts|tools)/[\w./-]+)", steps)
    assert len(named) >= 2
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_name_in_the_steps_stands_in_its_file() -> None:
    """`NAME` of (or in) `FILE`."""
    said = re.findall(r"`([A-Z_]{4,})` (?:of|in) `([\w/.]+)`", GUIDE)
    said += re.findall(r"(?:of|in) `([A-Z_]{4,})` (?:of|in) `([\w/.]+)`", GUIDE)
    assert len(said) >= 4
    for name, file in said:
        assert re.search(rf"^{name}\b", (ROOT / file).read_text(), re.MULTILINE), name


def modules() -> Iterator[Path]:
    for path in sorted((ROOT / "wstrace").rglob("*.py")):
        if not path.name.startswith("__"):
            yield path.relative_to(ROOT)


def shared(found: Mapping[str, list[str]]) -> set[str]:
    """The names that stand in several files: each has a reason, and each reason its name."""
    return {name for name, paths in found.items() if len(paths) > 1}


def test_no_two_modules_share_a_name_without_a_reason() -> None:
    found = defaultdict(list)
    for path in modules():
        if path.parent.name != "commands":
            found[path.stem].append(str(path))
    assert shared(found) == set(SHARED_MODULES)


def test_no_class_name_stands_in_several_modules_without_a_reason() -> None:
    found = defaultdict(list)
    for path in modules():
        for node in tree(ROOT / path).body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(path))
    assert shared(found) == set(SHARED_CLASSES)


def imported(path: Path) -> set[str]:
    """The modules of wstrace that a file imports, also within a function."""
    found = set()
    for node in nodes(ROOT / path):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def test_whoever_installs_it_can_reach_every_module() -> None:
    """From a command, Python, pytest or vLLM: what only tools/ uses belongs there."""
    names = {".".join(path.with_suffix("").parts): path for path in modules()}
    names["wstrace"] = Path("wstrace/__init__.py")
    for package in packages("wstrace"):
        names[package.replace("/", ".")] = Path(package, "__init__.py")
    waiting = [*DOORS]
    waiting += [name for name in names if name.startswith("wstrace.cli.commands.")]
    reached: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in names and name not in reached:
            reached.add(name)
            waiting += imported(names[name])
    unreached = {name for name in names if name not in reached}
    assert {n for n in unreached if names[n].name != "__init__.py"} == set()


def aliases() -> Iterator[tuple[str, frozenset[str], str]]:
    """Each `Name = Literal[...]` at the top of a module: name, words, module."""
    for path in modules():
        for node in tree(ROOT / path).body:
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.targets[0], ast.Name)
                and isinstance(node.value, ast.Subscript)
                and ast.unparse(node.value.value) == "Literal"
            ):
                words = ast.literal_eval(node.value.slice)
                several = words if isinstance(words, tuple) else (words,)
                yield node.targets[0].id, frozenset(several), str(path)


def test_a_set_of_words_is_defined_once() -> None:
    found, named = defaultdict(list), defaultdict(list)
    for name, words, path in aliases():
        found[words].append(f"{path}: {name}")
        named[name].append(path)
    assert len(found) > 20
    assert [places for places in found.values() if len(places) > 1] == []
    assert shared(named) == set(SHARED_ALIASES)


def constants() -> Iterator[tuple[str, str]]:
    """Each constant at the top of a module, as its value is written, and where; a number or a
    short word says too little to be known for another's."""
    for path in modules():
        for node in tree(ROOT / path).body:
            match node:
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    pass
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    pass
                case _:
                    continue
            written = ast.unparse(value)
            if name.isupper() and len(written) > 12 and "typer." not in written:
                yield written, f"{path}: {name}"


def test_a_constant_stands_once() -> None:
    """A second one is changed by nobody who finds the first."""
    found = defaultdict(list)
    for written, place in constants():
        found[written].append(place)
    assert len(found) > 400
    assert [places for places in found.values() if len(places) > 1] == []


def test_only_vllm_state_knows_the_fields_of_vllms_objects() -> None:
    asked = set()
    for path in modules():
        if path.parts[1] == "recorder" and path.parts[2] != "vllm_state":
            for node in nodes(ROOT / path):
                if isinstance(node, ast.Call) and re.fullmatch(
                    r"(inspect\.)?(has|get)attr(_static)?", ast.unparse(node.func)
                ):
                    asked |= {a.value for a in node.args[1:2] if isinstance(a, ast.Constant)}
    assert asked == ASKED_ELSEWHERE


def test_a_number_with_a_row_is_read_by_its_row() -> None:
    """A field that vLLM renames is then one more path of the row, and nothing else."""
    fields = {path.rsplit(".", 1)[-1] for row in rows() for path in row.config}
    by_hand = set()
    for path in (ROOT / "wstrace" / "recorder" / "vllm_state").glob("*.py"):
        for node in nodes(path):
            asked = node.attr if isinstance(node, ast.Attribute) else ""
            if isinstance(node, ast.Constant) and "." in str(node.value):
                asked = str(node.value).rsplit(".", 1)[-1]
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
                asked = ast.literal_eval(node.args[1]) if _is_text(node.args[1]) else ""
            if asked in fields:
                by_hand.add(f"{path.name}:{getattr(node, 'lineno', 0)} {asked}")
    assert len(fields) > 25
    # the forward context of a step and a metadata builder's spec have fields of the same name
    others = (" cudagraph_mode", " block_size")
    assert {place for place in by_hand if not place.endswith(others)} == set()


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_a_module_has_a_subject_and_so_five_hundred_lines_at_most() -> None:
    files = [
        path for top in ("wstrace", "tools", "tests") for path in (ROOT / top).rglob("*.py")
    ]
    lengths = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in files}
    assert len(lengths) > 500
    assert {name for name, lines in lengths.items() if lines > 500} - set(LONG) == set()


def test_one_word_is_one_row() -> None:
    text = (ROOT / "docs" / "how-it-works.md").read_text()
    table = text.split("## Words")[1].split("\n## ")[0]
    words = re.findall(r"^\| ([a-z ]+) \|", table, re.MULTILINE)[1:]
    assert len(words) >= 15
    assert len(words) == len(set(words))


def test_only_the_named_command_and_the_testbed_use_the_network() -> None:
    """SECURITY.md: `exercise`; the recorder's socket module gives the host's name."""
    names = r"urllib\.request|http|requests|httpx|aiohttp"
    network = re.compile(rf"^\s*(?:import|from) (?:{names})\b", re.MULTILINE)  # import http
    found = {str(path) for path in modules() if network.search((ROOT / path).read_text())}
    assert found == {"wstrace/exercise/client.py", "wstrace/testbed/engine.py"}
