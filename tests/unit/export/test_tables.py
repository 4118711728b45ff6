"""CSV and Parquet."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Sequence

import pytest

from tests.unit.report_html import runs
from wstrace.errors import WstraceError
from wstrace.frames.columns import FLEET, REQUESTS, TABLES, Column
from wstrace.frames.frames import request_rows
from wstrace.report.export.table_export import render_csv, render_parquet

# All columns in the order in which they came; a new one stands at the end, here too. Those of
# `sites` end the fleet's table, so a new one of theirs is new there too.
WRITTEN = {
    "requests": """
        run rank dp pp tp wall_ns phase after_lock step file function line caller layer
        ubatch lane bytes arena_bytes arena_warmup_bytes generation locked capturing escaped
        total_tokens num_reqs max_computed shapes step_kind draft_tokens
    """,
    "sites": """
        run file function caller ubatch lane warmup_bytes serving_bytes arena_bytes
        bound_bytes grade formula escaped calls requests ranks layers replayed
    """,
    "steps": """
        run rank dp pp tp step step_kind phase wall_ns total_tokens num_reqs draft_tokens
        max_computed max_scheduled requests bytes escaped
    """,
    "findings": """
        run code severity title file function caller ubatch lane ranks layers warmup_bytes
        serving_bytes arena_bytes bound_bytes grade formula phase step detail advice
    """,
    "fleet": """
        run kind verdict model vllm started hosts run_ranks expected_ranks died reserved
        codes rule refuted file function caller ubatch lane warmup_bytes serving_bytes
        arena_bytes bound_bytes grade formula escaped calls requests ranks layers replayed
    """,
}


def _table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_a_row_a_request() -> None:
    table = _table(render_csv(runs.crashed()))
    assert len(table) == 2 * 7
    escaped = [row for row in table if row["escaped"] == "True"]
    assert [(r["tp"], r["bytes"], r["arena_warmup_bytes"]) for r in escaped] == [
        ("0", str(32 * 2**20), str(24 * 2**20)),
        ("1", str(32 * 2**20), str(24 * 2**20)),
    ]
    assert escaped[0]["max_computed"] == "8192"
    assert escaped[0]["shapes"] == "bfloat16[1,8,8192,128] bfloat16[1,8,8192,128]"
    assert escaped[0]["function"] == runs.CONTINUATION


def test_an_unknown_number_is_empty_not_zero() -> None:
    row = next(r for r in _table(render_csv(runs.crashed())) if r["phase"] == "capture")
    assert row["step"] == ""
    assert row["total_tokens"] == ""


def test_an_empty_session_has_only_the_header() -> None:
    assert render_csv(runs.empty()) == ",".join(c.name for c in REQUESTS) + "\n"


@pytest.mark.parametrize(("name", "columns"), [*TABLES.items(), ("fleet", FLEET)])
def test_columns_stay_where_they_were_and_new_ones_come_last(
    name: str, columns: Sequence[Column]
) -> None:
    header, written = [column.name for column in columns], WRITTEN[name].split()
    assert header[: len(written)] == written, f"a column of {name} has moved"
    assert header[len(written) :] == [], f'a new column: add it at the end of WRITTEN["{name}"]'


def test_parquet_holds_the_same_rows() -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    session = runs.crashed()
    table = parquet.read_table(arrow.BufferReader(render_parquet(session)))
    assert table.to_pylist() == list(request_rows(session))
    assert str(table.schema.field("bytes").type) == "int64"


def test_without_pyarrow_two_lines_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(WstraceError) as told:
        render_parquet(runs.crashed())
    assert "pyarrow" in told.value.message
    assert "pip install pyarrow" in told.value.hint
