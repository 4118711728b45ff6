"""The table of codes: what a new row still lacks is named here."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from tests.sources import nodes
from wstrace.findings.codes import (
    CODES,
    ESCAPES,
    FORETOLD,
    INCONCLUSIVE_FAMILY,
    OUTGROWN,
    REFUSED_ELSEWHERE,
    Code,
    Severity,
)
from wstrace.gate.selection import parse_selection

ROOT = Path(__file__).resolve().parents[3]
SOURCES = [p for p in (ROOT / "wstrace").rglob("*.py") if p.name != "codes.py"]
# What makes findings of a trace and of a log, and the hooks' list, which says what each is for.
MAKERS = {
    "findings/coverage.py",
    "findings/escapes.py",
    "findings/kv_sizing.py",
    "findings/pointers.py",
    "triage/diagnose/classify.py",
    "triage/diagnose/symptoms.py",
    "vllm/methods.py",
}
TESTS = [p for p in (ROOT / "tests").rglob("test_*.py") if p != Path(__file__)]


def readme_row(row: Code) -> str:
    """The code's row in the README's table."""
    return f"| [{row.code}]({row.page}) | {row.title} | {row.severity} |"


def lacks(row: Code) -> list[str]:
    """What a row of the table is still without."""
    found = [*_page_lacks(row)]
    if readme_row(row) not in (ROOT / "README.md").read_text().splitlines():
        found.append(f"README.md: {readme_row(row)}")
    nav = f"      - {row.code}: {row.page.removeprefix('docs/')}"
    if nav not in (ROOT / "mkdocs.yml").read_text().splitlines():
        found.append(f"mkdocs.yml, below Findings: {nav.strip()}")
    if not any(f'"{row.code}"' in path.read_text() for path in SOURCES):
        found.append(f"no module of wstrace makes a finding {row.code}")
    if not any(row.code in path.read_text() for path in TESTS):
        found.append(f"no test names {row.code}")
    return found


def _page_lacks(row: Code) -> Iterator[str]:
    page = ROOT / row.page
    if not page.exists():
        yield f"write {row.page}"
        return
    lines = page.read_text().splitlines()
    if lines[0] != f"# {row.code}: {row.title}":
        yield f"{row.page}, first line: # {row.code}: {row.title}"
    if not any(line.startswith(f"**Severity:** {row.severity}.") for line in lines):
        yield f"{row.page}: **Severity:** {row.severity}."


@pytest.mark.parametrize("row", CODES.values(), ids=list(CODES))
def test_every_row_has_its_page_its_readme_row_its_finding_and_its_test(row: Code) -> None:
    told = lacks(row)
    assert not told, "\n".join(told)


def test_a_forgotten_row_would_be_told() -> None:
    told = lacks(Code("WS1" + "99", "new", "error"))
    assert [line.partition(":")[0].split()[0] for line in told] == [
        "write",
        "README.md",
        "mkdocs.yml,",
        "no",
        "no",
    ]


def test_a_page_of_another_title_or_severity_would_be_told() -> None:
    told = lacks(Code("WS403", "shortened", "error", arena=False))
    assert [line.partition(":")[0] for line in told] == [
        "docs/findings/WS403.md, first line",
        "docs/findings/WS403.md",
        "README.md",
    ]


def test_no_code_is_used_that_the_table_does_not_have() -> None:
    used = {c for path in SOURCES for c in re.findall(r'"(WS\d{3})"', path.read_text())}
    assert used <= set(CODES)


def named(*parts: ast.AST) -> bool:
    """Whether one of them names a code, or a family of them: WS102, WS1, WS40x."""
    return any(
        isinstance(part, ast.Constant) and re.fullmatch(r"WS\d[\dx]*", str(part.value))
        for part in parts
    )


def test_what_follows_from_a_code_stands_in_its_row() -> None:
    """A new code then needs no search for the places that ask which code it is."""
    naming = {str(p.relative_to(ROOT / "wstrace")) for p in SOURCES if named(*nodes(p))}
    assert naming == MAKERS
    asking = [
        f"{path.name}:{node.lineno}"
        for path in SOURCES
        for node in nodes(path)
        if isinstance(node, ast.Compare | ast.Dict | ast.Subscript | ast.Match)
        and named(*ast.walk(node))
    ]
    assert asking == []


def test_what_the_rows_say_beside_their_severity() -> None:
    """As the pages of these codes say."""

    def of(fact: str) -> dict[str, object]:
        return {c: getattr(row, fact) for c, row in CODES.items() if getattr(row, fact)}

    assert set(of("outgrows")) == {c for c in CODES if c.startswith("WS1")}
    assert set(of("unwarmed")) == {"WS101", "WS104"}
    assert set(of("resource")) == {"WS105"}
    assert set(of("own_subject")) == {"WS301"}
    assert set(of("mend")) == {"WS107", "WS202"}
    assert of("lacks") == {"WS401": "start", "WS402": "rank"}


def test_the_family_of_the_inconclusive_is_theirs() -> None:
    unsure = [c for c, row in CODES.items() if row.severity == "inconclusive"]
    family = INCONCLUSIVE_FAMILY.replace("x", r"\d")
    assert unsure
    assert [c for c in unsure if not re.fullmatch(family, c)] == []


def test_severities_begin_with_one_of_the_words() -> None:
    words = get_args(Severity)
    assert [c.code for c in CODES.values() if c.severity.split()[0] not in words] == []


def test_what_is_an_escape_and_what_a_reserve_cannot_cure() -> None:
    """As docs/gate.md and the pages of these codes say."""
    assert {"WS101", "WS102", "WS104", "WS105", "WS106"} == ESCAPES
    assert {"WS105", "WS106"} == REFUSED_ELSEWHERE
    assert {"WS101", "WS102", "WS104"} == OUTGROWN
    assert {"WS103", "WS107"} == FORETOLD
    assert parse_selection("escapes").codes == ESCAPES


def test_the_gates_page_lists_the_escapes() -> None:
    page = (ROOT / "docs" / "gate.md").read_text()
    listed = re.search(r"`escapes`\s\(WS([\d, ]+)\)", page)  # `escapes` (WS101, 102)
    assert listed
    assert {f"WS{number}" for number in listed[1].split(", ")} == ESCAPES


def test_the_dashboard_counts_the_escapes() -> None:
    board = (ROOT / "dashboards" / "grafana" / "wstrace.json").read_text()
    patterns = re.findall(r'code=~\\"(WS[^\\"]+)', board)  # code=~\"WS10[12]\"
    assert patterns
    for pattern in patterns:
        assert {code for code in CODES if re.fullmatch(pattern, code)} == ESCAPES
