"""The documentation holds what it says: links, codes, commands, examples and numbers."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import yaml
from typer.testing import CliRunner

from tools.docs.__main__ import GENERATORS
from wstrace.cli.app import COMMANDS, app, register_commands
from wstrace.findings.codes import TITLES
from wstrace.pytest_marker import Marker
from wstrace.recorder.settings import read_settings

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
TOP = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
PAGES = [*(ROOT / name for name in TOP), *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?<!`)\[[^\]]*\]\(([^)\s]+)\)")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """What `#...` may name, as code hosts and mkdocs make it of the headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_resolves(page: Path) -> None:
    broken = []
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or not target.is_relative_to(ROOT):
            broken.append(link)
        elif anchor and anchor not in anchors(target):
            broken.append(f"{link} (no such heading)")
    assert broken == []


def test_a_broken_link_would_be_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One thing\n[a](gone.md) `[b](c)`\n```\n[x](y)\n```\n")
    assert LINK.findall(prose(page)) == ["gone.md"]
    assert anchors(page) == {"one-thing"}


def test_the_readme_lists_the_codes_in_their_order_and_no_others() -> None:
    """What it lacks is told by tests/unit/findings/test_codes.py."""
    listed = re.findall(r"^\| \[(WS\d+)\]", README.read_text(), re.MULTILINE)
    assert listed == [code for code in TITLES if code in listed]
    assert len(listed) > 10


def sections() -> dict[str, str]:
    """docs/cli.md by command."""
    parts = re.split(r"^## ", (DOCS / "cli.md").read_text(), flags=re.MULTILINE)[1:]
    return {part.split("\n", 1)[0]: part for part in parts}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_documented_with_the_options_that_its_help_shows(name: str) -> None:
    register_commands()
    shown = CliRunner().invoke(
        app, [name, "--help"], env={"COLUMNS": "300", "NO_COLOR": "1", "TERM": "dumb"}
    )
    assert shown.exit_code == 0
    rows = re.findall(r"^  (?:-\w, )?(--[a-z-]+)", shown.output, re.MULTILINE)
    documented = [
        OPTION.findall(row.split(" | ")[0])[0]
        for row in re.findall(r"^\| (`-.*)$", sections()[name], re.MULTILINE)
    ]
    assert "--help" in rows
    assert sorted(set(rows) - {"--help"}) == sorted(documented)


def test_the_readme_starts_with_vllms_message_as_a_log_has_it() -> None:
    log = (ROOT / "tests" / "data" / "docs" / "pasted.log").read_text()
    message = log[log.index("AssertionError: Workspace is locked") :].strip()
    assert message in README.read_text().splitlines()[:6]


@pytest.mark.parametrize("command", ["./scripts/demo", "./scripts/test", "./scripts/docs"])
def test_the_commands_of_the_readme_exist(command: str) -> None:
    assert command in README.read_text()
    assert os.access(ROOT / command, os.X_OK)


def test_the_two_commands_stand_alone_in_one_block() -> None:
    blocks = re.findall(r"^```\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
    assert "./scripts/demo\n./scripts/test\n" in blocks


def test_ci_runs_the_readmes_test_command_and_nothing_else() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    commands = [line for line in lines if line and not line.startswith(("#", "set "))]
    assert len(commands) == 1
    assert commands[0].endswith('/../scripts/test"')


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_measured_block_names_a_script_of_the_repository(page: Path) -> None:
    for script, name in re.findall(r"made by (\S+) ([\w-]+) -->", page.read_text()):
        assert os.access(ROOT / script, os.X_OK)
        assert script != "scripts/make-docs" or name in GENERATORS
        assert script != "scripts/bench" or (ROOT / "tools" / "bench" / f"{name}.py").is_file()


def measured(page: Path) -> str:
    found = re.search(
        r"<!-- made by scripts/bench overhead -->(.*?)<!-- end -->", page.read_text(), re.DOTALL
    )
    assert found is not None
    return found[1]


def test_what_the_readme_says_of_cost_is_what_the_page_measured() -> None:
    table = measured(DOCS / "overhead.md")
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in table.splitlines()
        if line.startswith("|") and "off/off" not in line
    ][2:]
    said = re.search(r"(\d+) % more CPU time .* takes (\d+) to (\d+) us", measured(README))
    assert said is not None
    percent, low, high = map(int, said.groups())
    calls = [float(row[1]) for row in rows]
    ratios = [float(row[4]) for row in rows]
    assert (low, high) == (round(min(calls)), round(max(calls)))
    assert min(ratios) - 0.01 <= 1 + percent / 100 <= max(ratios) + 0.01
    page = (DOCS / "overhead.md").read_text()
    steps = page.partition("<!-- steps, made by scripts/bench overhead -->")[2]
    added = [int(n) for n in re.findall(r"\| \+(\d+) \|", steps.partition("<!-- end")[0])]
    assert f"a step add {min(added)} to {max(added)} us" in measured(README)


def test_no_cost_is_claimed_outside_a_measured_block() -> None:
    text = prose(README).replace(measured(README), "")
    assert re.findall(r"\d+(?:\.\d+)? ?(?:us|µs|ms|%)(?!\w)", text) == []


def test_every_page_is_in_the_sites_navigation() -> None:
    def files(entries: list[Any]) -> list[str]:
        values = [e if isinstance(e, str) else next(iter(e.values())) for e in entries]
        return [f for v in values for f in (files(v) if isinstance(v, list) else [v])]

    listed = files(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    pages = [str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")]
    assert sorted(listed) == sorted(pages)


def test_the_sites_requirements_are_pinned() -> None:
    lines = (ROOT / "scripts" / "docs-requirements.txt").read_text().splitlines()
    wanted = [line for line in lines if line and not line.startswith("#")]
    assert wanted
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in wanted)


def test_the_documented_variables_are_those_that_the_recorder_reads() -> None:
    class Asked(dict[str, str]):
        """Notes which names are looked up."""

        def get(self, name: str, default: Any = None) -> Any:
            seen.append(name)
            return default

    seen: list[str] = []
    read_settings(Asked())
    text = (DOCS / "python-api.md").read_text()
    documented = re.findall(r"^\| `(WSTRACE_\w+)` ", text, re.MULTILINE)
    assert {name for name in seen if name.startswith("WSTRACE_")} == set(documented)


def test_the_documented_marker_is_the_marker() -> None:
    text = (DOCS / "python-api.md").read_text()
    part = text[text.index("| argument |") :].split("\n\n")[0]
    documented = re.findall(r"^\| `(\w+)` ", part, re.MULTILINE)
    assert documented == [field.name for field in dataclasses.fields(Marker)]


# where a shell or a recipe would begin a command, then `wstrace gate trace --fail-on warning`
TYPED = re.compile(
    r"(?:^\s*|[`|;&] ?|\$ |\b(?:exec|do:|next:|run:) +|^\s*- )(?:[A-Z_]+=\S+ )*"
    r"wstrace (?:--?[a-z-]+ )*([a-z]+)(?![\w:])((?: [^`\n]*)?)",
    re.MULTILINE,
)
SCRIPT = re.compile(r"(?<![\w/.-])(?:\./)?((?:scripts|docs/ci)/[\w-]+)(?![\w.*/-])")
RECIPES = [
    path
    for folder in (DOCS / "ci", DOCS / "monitoring")
    for path in sorted(folder.iterdir())
    if path.is_file()
]


def typed(text: str) -> list[tuple[str, list[str]]]:
    """(command, its options) of each `wstrace ...` in code: fences, indents, backticks."""
    code = [*FENCE.findall(text), *re.findall(r"^ {4,}.*$", text, re.MULTILINE)]
    code += re.findall(r"`[^`\n]+`", FENCE.sub("", text))
    found = []
    for piece in code:
        for name, rest in TYPED.findall(piece.replace("\\\n", " ")):
            ours = re.split(r" -- | [|&;#] |\s{3,}", f"{rest} ")[0]
            found.append((name, OPTION.findall(ours)))
    return found


@pytest.mark.parametrize("page", [*PAGES, *RECIPES, ROOT / "action.yml"], ids=name_of)
def test_every_command_that_a_page_types_exists_with_its_options(page: Path) -> None:
    text = page.read_text()
    for name, options in typed(text if page.suffix == ".md" else f"```\n{text}\n```"):
        assert name in COMMANDS, f"wstrace {name}"
        rows = re.findall(r"^\| (`-.*?) \|", sections()[name], re.MULTILINE)
        known = {option for row in rows for option in OPTION.findall(row)}
        assert set(options) <= known | {"--help"}, f"wstrace {name}"


def test_a_command_that_is_gone_would_be_found() -> None:
    text = (
        "```\nA=1 wstrace gone x --yes -- vllm --zoo\n```\n`wstrace gate --fail-on x` wstrace a"
    )
    assert typed(text) == [("gone", ["--yes"]), ("gate", ["--fail-on"])]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_script_that_a_page_types_is_there(page: Path) -> None:
    for script in SCRIPT.findall(page.read_text()):
        assert (ROOT / script).exists(), script
