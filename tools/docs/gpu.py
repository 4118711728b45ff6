"""The tables of the GPU runs in docs/gpu.md and docs/overhead.md, from what was kept."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from tools import ROOT
from tools.docs.page import Generator, Pages
from tools.gpu.keep import TABLES
from tools.gpu.table import Claim, markdown, show

# matches: "<!-- made by scripts/make-docs gpu -->\n<!-- tables: a -->\n<!-- end -->"
BLOCK: Final = re.compile(
    r"(<!-- made by scripts/make-docs gpu -->\n<!-- tables: ([^>]+) -->\n).*?(<!-- end -->)",
    re.DOTALL,
)


def table(name: str) -> str:
    kept: dict[str, Any] = json.loads((TABLES / f"{name}.json").read_text())
    facts = ", ".join(f"{key} {show(value)}" for key, value in kept["facts"].items())
    return f"{facts}\n\n" + markdown([Claim(**row) for row in kept["claims"]], kept["not_run"])


def filled(text: str) -> str:
    def block(match: re.Match[str]) -> str:
        tables = "\n".join(table(name) for name in match[2].split(", "))
        return f"{match[1]}\n{tables}\n{match[3]}"

    return BLOCK.sub(block, text)


def pages() -> Pages:
    for page in (ROOT / "docs" / "gpu.md", ROOT / "docs" / "overhead.md"):
        yield page, filled(page.read_text())


GENERATOR: Final = Generator("gpu", pages)
