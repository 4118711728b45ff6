"""Recorded requests as CSV or Parquet: the frame of `wstrace.load(TRACE).requests()`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

from wstrace.errors import WstraceError
from wstrace.findings.analysed_run import AnalysedRun
from wstrace.frames import frames
from wstrace.frames.columns import REQUESTS, Column, Dtype
from wstrace.report.verdict import sentence

_FORMULA: Final = ("=", "+", "-", "@")
_ARROW: Final[dict[Dtype, str]] = {
    "int64": "int64",
    "Int64": "int64",
    "bool": "bool_",
    "boolean": "bool_",
    "string": "string",
    "category": "string",
}


def render_csv(run: AnalysedRun) -> str:
    """The table as CSV with a header line; unknown values are empty.

    A text that a spreadsheet would run as a formula gets a quote before it.
    """
    texts = {c.name: "object" for c in REQUESTS if c.dtype in ("string", "category")}
    frame = frames.requests(run).astype(texts)
    for name in texts:
        frame[name] = frame[name].map(_inert, na_action="ignore")
    text: str = frame.to_csv(index=False, lineterminator="\n")
    return text


def _inert(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text


def render_parquet(run: AnalysedRun) -> bytes:
    """The table as a Parquet file, with the verdict in its metadata.

    Raises WstraceError where pyarrow is missing.
    """
    arrow, parquet = pyarrow()
    plain = frames.requests(run).astype(
        {c.name: "string" for c in REQUESTS if c.dtype == "category"}
    )
    table = arrow.Table.from_pandas(
        plain, schema=arrow_schema(arrow, REQUESTS), preserve_index=False
    )
    told = {"wstrace.verdict": run.verdict(), "wstrace.sentence": sentence(run)}
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), **told})
    sink = arrow.BufferOutputStream()
    parquet.write_table(table, sink, compression="zstd")
    written: bytes = sink.getvalue().to_pybytes()
    return written


def pyarrow(instead: str = "csv") -> tuple[Any, Any]:
    """pyarrow and its Parquet part. Raises WstraceError where it is missing; `instead` is the
    format that needs none."""
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise WstraceError(
            "Parquet needs pyarrow, which is not installed.",
            f"Install it with `pip install pyarrow`, or use --format {instead}.",
        ) from error


def arrow_schema(arrow: Any, columns: Sequence[Column]) -> Any:
    """Fixed types: a column that is unknown throughout keeps its own."""
    return arrow.schema([(c.name, getattr(arrow, _ARROW[c.dtype])()) for c in columns])
