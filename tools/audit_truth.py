"""Holds `wstrace audit` against a table that people made by reading the same releases.

    python -m tools.audit_truth [VERSION ...] [--write-docs]

Prints for each release how many requests were found, how many roles and matches agree, and each
disagreement with who is right. `--write-docs` writes that into docs/audit.md. The sources are
those of tests/matrix/wheels.py.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.matrix.wheels import python_files
from wstrace.audit.request_roles import SERVING
from wstrace.audit.whole import Audit, AuditedSite, audit

ROOT: Final = Path(__file__).resolve().parents[1]
TABLE: Final = ROOT / "tests" / "matrix" / "audit_truth.csv"
DOCS: Final = ROOT / "docs" / "audit.md"
BEGIN: Final = "<!-- written by tools/audit_truth.py -->"
END: Final = "<!-- end -->"

_NOT_FOLLOWED: Final = (
    "the table; the reservation's own source cannot be followed, so the audit does not say full"
)
_TOO_MANY_ROWS: Final = (
    "the table, which knows how many rows a decode step has; the audit takes more"
)
_CONDITION: Final = (
    "the table, which knows that the request is made under the reservation's condition too; the"
    " audit does not see that on the way to it and names the condition"
)
# Who is right where the two differ, by file and function.
RIGHT: Final = {
    "modular_kernel.py:FusedMoEModularKernel._allocate_buffers": (
        "the table: the same shape function with a larger row count; the audit follows no"
        " method that a subclass gives, so it says that it is not shown"
    ),
    "rocm_aiter_mla.py:AiterMLAImpl._mla_fp8_prefill_attn": (
        "the table, which took the number of tiles from the AITER library; the audit reads"
        " vLLM alone"
    ),
    "triton_mla.py:TritonMLAImpl.forward_mqa": _NOT_FOLLOWED,
    "attention.py:Dots3NoteTritonMLAImpl._forward_swa_mqa": _NOT_FOLLOWED,
    "rocm_paged_mxfp4_indexer.py:_dense_decode": _TOO_MANY_ROWS,
    "rocm_aiter_mla_sparse.py:rocm_fp8_paged_mqa_logits_triton": _TOO_MANY_ROWS,
    "rocm_aiter_mla.py:AiterMLAImpl._forward_triton_dcp_verify": (
        "the table; the reservation takes the largest of a generated list, whose length the"
        " audit does not know"
    ),
    "qwen_gdn_linear_attn.py:QwenGatedDeltaNetAttention._forward_core": _CONDITION,
    "qsa.py:Qwen4ExpQSAFlashAttentionImpl._octave_buffers": _CONDITION,
    "segmented_attention.py:run_segmented_attention": (
        "the audit: the line runs only where no workspace is given, and both callers give one"
    ),
}


@dataclass(frozen=True)
class Row:
    """One request as people read it. `role` "dead": nothing calls it."""

    version: str
    file: str
    line: int
    enclosing: str
    role: str
    match: str


@dataclass(frozen=True)
class Compared:
    """A row and what the audit says of it; None where it was not found."""

    row: Row
    site: AuditedSite | None

    @property
    def role_right(self) -> bool:
        """Told right, or a request that nothing reaches."""
        return self.site is not None and self.row.role in ("dead", self.site.role)

    @property
    def match_right(self) -> bool:
        """The same verdict."""
        return self.site is not None and self.row.match == self.site.match


def table() -> list[Row]:
    """The table's rows."""
    with TABLE.open() as lines:
        return [
            Row(r["version"], r["file"], int(r["line"]), r["enclosing"], r["role"], r["match"])
            for r in csv.DictReader(lines)
        ]


def versions() -> tuple[str, ...]:
    """The releases of the table, in its order."""
    return tuple(dict.fromkeys(row.version for row in table()))


def compared(version: str, found: Audit) -> list[Compared]:
    """One release's rows with the audit's sites."""
    by_place = {(s.file, s.enclosing, s.line): s for s in found.sites}
    rows = [row for row in table() if row.version == version]
    return [Compared(r, by_place.get((r.file, r.enclosing, r.line))) for r in rows]


def serving(found: Sequence[Compared]) -> list[Compared]:
    """The rows that have a match to be told."""
    return [c for c in found if c.row.role in SERVING]


def summary(found: Sequence[Compared]) -> str:
    """Counts of one or several releases, as cells of a table."""
    steps = serving(found)
    reached = sum(c.site is not None for c in found)
    roles = sum(c.role_right for c in found)
    matches = sum(c.match_right for c in steps)
    return f"{reached}/{len(found)} | {roles}/{len(found)} | {matches}/{len(steps)}"


def disagreements(found: Sequence[Compared]) -> list[str]:
    """One row of a table for each function and verdict."""
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for c in found:
        if c.role_right and c.match_right:
            continue
        mine = "not found" if c.site is None else f"{c.site.role}, {c.site.match}"
        name = f"{Path(c.row.file).name}:{c.row.enclosing}"
        key = (name, f"{c.row.role}, {c.row.match}", mine)
        grouped.setdefault(key, []).append(f"{c.row.version}:{c.row.line}")
    return [
        f"| `{name}` | {', '.join(at)} | {table_says} | {mine} | {RIGHT.get(name, 'open')} |"
        for (name, table_says, mine), at in grouped.items()
    ]


def page(found: Sequence[Compared]) -> str:
    """The generated part of docs/audit.md."""
    lines = ["| vLLM | found | role right | match right |", "|---|---|---|---|"]
    by_version = {v: [c for c in found if c.row.version == v] for v in versions()}
    lines += [f"| {version} | {summary(rows)} |" for version, rows in by_version.items()]
    lines += [f"| all | {summary(found)} |", ""]
    lines += ["| request | release:line | the table | the audit | who is right |"]
    lines += ["|---|---|---|---|---|", *disagreements(found)]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*")
    parser.add_argument("--write-docs", action="store_true")
    options = parser.parse_args(arguments)
    wanted = options.versions or versions()
    audits = {v: audit(python_files(v) / "vllm", v) for v in wanted}
    found = [c for version, whole in audits.items() for c in compared(version, whole)]
    text = page(found)
    print(text)
    if options.write_docs:
        before, _, rest = DOCS.read_text().partition(BEGIN)
        after = rest.partition(END)[2]
        DOCS.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
