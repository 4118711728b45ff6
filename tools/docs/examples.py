"""Write the output of wstrace's commands into README.md and docs/, where a marker asks for it.

    <!-- run: wstrace report crash | until WS201 -->     stops before the line that starts so
    <!-- run: wstrace reserve crash | keep slots,cost --> these top-level YAML keys only
    <!-- run: wstrace report crash | only WS107 -->       the finding of this code
    <!-- run: wstrace gate crash -->                      all of it

The code block after a marker is replaced by what the command prints in tests/data/docs, or in
sample_traces where the trace is one of those; all are real.
"""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path
from typing import Final

from tools import ROOT
from tools.docs.commands import said
from tools.docs.page import Generator, Pages

DATA = ROOT / "tests" / "data" / "docs"
SAMPLES = ROOT / "sample_traces"
# matches: "<!-- run: report demo-crash | head -3 -->\n```text\nclean\n```"
BLOCK = re.compile(
    r"(?P<marker><!-- run: (?P<command>[^|\n]+?)(?: \| (?P<cut>[^\n]+?))? -->\n)"
    r"```(?P<kind>\w*)\n.*?^```$",
    re.DOTALL | re.MULTILINE,
)


def shown() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def filled(text: str) -> str:
    return BLOCK.sub(block, text)


def block(match: re.Match[str]) -> str:
    lines = cut([*output(match["command"])], match["cut"] or "")
    if match["kind"] != "yaml":
        lines.insert(0, f"$ {match['command']}")
    body = "\n".join(lines)
    return f"{match['marker']}```{match['kind']}\n{body}\n```"


@cache
def output(command: str) -> tuple[str, ...]:
    """Stdout's lines."""
    program, *words = shlex.split(command)
    assert program == "wstrace", command
    folder = SAMPLES if any((SAMPLES / name).is_dir() for name in words) else DATA
    return tuple(line.rstrip() for line in said(words, folder).rstrip().splitlines())


def cut(lines: list[str], how: str) -> list[str]:
    if how.startswith("until "):
        start = how.removeprefix("until ")
        end = next((n for n, line in enumerate(lines) if line.startswith(start)), None)
        assert end is not None, f"no line starts with {start!r}"
        kept = "\n".join(lines[:end]).rstrip()
        return [*kept.splitlines(), "..."]
    if how.startswith("only "):
        return only_finding(lines, how.removeprefix("only "))
    if how.startswith("keep "):
        return keep_keys(lines, how.removeprefix("keep ").split(","))
    return lines


def only_finding(lines: list[str], code: str) -> list[str]:
    """The first finding of this code: its first line, and those below it up to a blank one."""
    start = next((n for n, line in enumerate(lines) if line.startswith(f"{code} ")), None)
    assert start is not None, f"no finding {code}"
    rest = lines[start:]
    return ["...", *(rest[: rest.index("")] if "" in rest else rest)]


def keep_keys(lines: list[str], keys: list[str]) -> list[str]:
    """The named top-level keys, without comments that stand alone."""
    kept, keeping = [], False
    for line in lines:
        if line and not line.startswith((" ", "#", "-")):
            keeping = line.partition(":")[0] in keys
        if keeping and line and not line.lstrip().startswith("#"):
            kept.append(line)
    return ["# shortened", *kept]


def pages() -> Pages:
    for page in shown():
        yield page, filled(page.read_text())


GENERATOR: Final = Generator("examples", pages)
