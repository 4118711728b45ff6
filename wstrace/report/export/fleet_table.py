"""A fleet as one Parquet file, written in portions: a row a site of a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from wstrace.files import naming, replacing
from wstrace.frames.columns import FLEET
from wstrace.report.export.table_export import arrow_schema, pyarrow

if TYPE_CHECKING:
    from wstrace.fleet.fleet import Fleet
    from wstrace.fleet.summary import RunSummary

PORTION: Final = 10_000
MOST_NOTES: Final = 1_000


def write_parquet(fleet: Fleet, target: Path) -> None:
    """Write the file by rename, with the fleet's notes in its metadata (`wstrace.notes`, JSON).

    Raises WstraceError where pyarrow is missing or the file cannot be written.
    """
    arrow, parquet = pyarrow("json")
    schema = arrow_schema(arrow, FLEET)
    notes = json.dumps(list(islice(fleet.notes(), MOST_NOTES)))
    schema = schema.with_metadata({**(schema.metadata or {}), "wstrace.notes": notes})
    with (
        naming(target),
        replacing(target) as part,
        parquet.ParquetWriter(part, schema, compression="zstd") as writer,
    ):
        rows = table_rows(fleet.rows())
        while portion := list(islice(rows, PORTION)):
            writer.write_table(arrow.Table.from_pylist(portion, schema=schema))


def table_rows(runs: Iterable[RunSummary]) -> Iterator[dict[str, Any]]:
    """The rows of `FLEET`; what is unknown is None."""
    names = [column.name for column in FLEET]
    for run in runs:
        of_run = {
            "run": run.run,
            "kind": run.kind,
            "verdict": run.verdict,
            "model": run.model or None,
            "vllm": run.vllm or None,
            "started": run.started or None,
            "hosts": run.hosts,
            "run_ranks": run.ranks,
            "expected_ranks": run.expected,
            "died": run.died,
            "reserved": run.reserved,
            "codes": " ".join(sorted({finding["code"] for finding in run.findings})),
        }
        sites: Iterable[Mapping[str, Any]] = run.sites or ({},)
        for site in sites:
            both = {**site, **of_run}
            yield {name: both.get(name) for name in names}
