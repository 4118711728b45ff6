"""A number beyond 64 bits in any place of a record: told in two lines, or not read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from wstrace.errors import WstraceError
from wstrace.findings.analysed_run import load_run
from wstrace.report import json as report_json
from wstrace.report.text import render_text

DEMO = next((Path(__file__).parents[3] / "sample_traces/demo-crash").glob("*.jsonl"))
LARGE = 10**400


def enlarged(value: Any) -> Iterator[Any]:
    """`value` once for each of its numbers, with that one large."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "limits":  # a reserve's may be large too: its formulas refuse them
                continue
            yield from ({**value, key: changed} for changed in enlarged(inner))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from ([*value[:i], changed, *value[i + 1 :]] for changed in enlarged(inner))
    elif isinstance(value, int) and not isinstance(value, bool):
        yield LARGE


def lines() -> dict[str, tuple[int, dict[str, Any]]]:
    """The first record of each kind, with its place."""
    found = [json.loads(line) for line in DEMO.read_text().splitlines()]
    return {record["t"]: (at, record) for at, record in reversed(list(enumerate(found)))}


@pytest.mark.parametrize("kind", sorted(lines()))
def test_a_number_beyond_64_bits_is_no_record(kind: str, tmp_path: Path) -> None:
    at, record = lines()[kind]
    whole = DEMO.read_text().splitlines(keepends=True)
    path = tmp_path / "x.wst.jsonl"
    changed = [json.dumps(one) + "\n" for one in enlarged(record)]
    assert changed
    for line in changed:
        path.write_text("".join([*whole[:at], line, *whole[at + 1 :]]))
        with pytest.raises(WstraceError, match=r"not a wstrace trace|not a trace record"):
            load_run(path)


def test_the_largest_numbers_of_64_bits_are_shown(tmp_path: Path) -> None:
    """Times, sizes and addresses of a hostile hand: no traceback on the way to a report."""
    path = tmp_path / "x.wst.jsonl"
    for extreme in (2**63 - 1, -(2**63)):
        changed = (json.loads(line) for line in DEMO.read_text().splitlines())
        path.write_text("".join(json.dumps(_all(r, extreme)) + "\n" for r in changed))
        with suppress(WstraceError):  # a limit above 2^63, in two lines
            run = load_run(path)
            render_text(run)
            report_json.render_json(run)


def _all(value: Any, number: int) -> Any:
    if isinstance(value, dict):
        kept = ("format",)
        return {k: v if k in kept else _all(v, number) for k, v in value.items()}
    if isinstance(value, list):
        return [_all(v, number) for v in value]
    return number if isinstance(value, int) and not isinstance(value, bool) else value
