"""The columns of the public tables, as data: their dtypes, units and meanings.

docs/python-api.md is made from here, and so is the header of `wstrace export`. Dtypes are
chosen by what a column can hold: plain numpy where a value is always known, pandas' nullable
ones where it may be unknown, `category` for names that stand in row after row, `string` for
text that differs from row to row. A new column goes after the last of its table, so that
readers that count columns keep working.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from wstrace.findings.codes import ORDER
from wstrace.reserve.schema import GRADES
from wstrace.trace.records import Phase

Dtype = Literal["int64", "Int64", "bool", "boolean", "string", "category"]
Table = Literal["requests", "sites", "steps", "findings"]


@dataclass(frozen=True)
class Column:
    """One column. `categories`: the values in their order, for an ordered category."""

    name: str
    dtype: Dtype
    meaning: str
    unit: str = ""
    categories: tuple[str, ...] = ()


PHASES: Final[tuple[str, ...]] = get_args(Phase)  # in the order of an engine's life
STRENGTHS: Final[tuple[str, ...]] = GRADES[::-1]  # the best is the largest
SEVERITIES: Final[tuple[str, ...]] = tuple(ORDER)[::-1]  # the worst is the largest

_RUN = Column("run", "category", "run id")
_RANKS = (
    Column("rank", "Int64", "global rank of the worker"),
    Column("dp", "Int64", "data-parallel rank"),
    Column("pp", "Int64", "pipeline-parallel rank"),
    Column("tp", "Int64", "tensor-parallel rank"),
)
_FILE = Column("file", "category", "source file of the call site, as its module names it")
_FUNCTION = Column("function", "category", "qualified function of the call site")
_CALLER = Column("caller", "category", "`file:line:function`, as vLLM's error names it")
_SLOT = (
    Column("ubatch", "Int64", "slot: micro-batch"),
    Column("lane", "Int64", "slot: lane"),
)
_PHASE = Column("phase", "category", "phase of the engine, in its order", categories=PHASES)
_STEP = Column("step", "Int64", "number of the step; unknown outside steps")
_STEP_STATE = (
    Column("total_tokens", "Int64", "tokens scheduled in the step", "tokens"),
    Column("num_reqs", "Int64", "requests scheduled in the step"),
    Column("max_computed", "Int64", "most tokens already computed of any of them", "tokens"),
)
_KIND = Column("step_kind", "category", "`real`, `dummy`, `idle` or `warmup`")
_DRAFT = Column("draft_tokens", "Int64", "draft tokens scheduled in the step", "tokens")


def _known(column: Column) -> Column:
    """The same column in a table where its value is never unknown."""
    return replace(column, dtype="int64")


_WARMUP = Column("warmup_bytes", "Int64", "largest request before the lock", "bytes")
_SERVING = Column("serving_bytes", "Int64", "largest request from the lock on", "bytes")
_ARENA = Column(
    "arena_bytes",
    "Int64",
    "arena of the slot at the end of warm-up, the smallest rank's",
    "bytes",
)
_BOUND = (
    Column("bound_bytes", "Int64", "most that the site can ever ask", "bytes"),
    Column("grade", "category", "what stands behind the bound", categories=STRENGTHS),
    Column("formula", "string", "the bound over limits of the config"),
)

REQUESTS: Final[tuple[Column, ...]] = (
    _RUN,
    *_RANKS,
    Column("wall_ns", "int64", "time of the request since 1970, UTC", "ns"),
    _PHASE,
    Column("after_lock", "bool", "from the lock on"),
    _STEP,
    _FILE,
    _FUNCTION,
    Column("line", "Int64", "line of the call; it moves between builds"),
    _CALLER,
    Column("layer", "category", "layer that asked first"),
    *map(_known, _SLOT),
    Column("bytes", "int64", "what was asked", "bytes"),
    Column("arena_bytes", "int64", "arena of the slot at that moment", "bytes"),
    Column("arena_warmup_bytes", "int64", "arena of the slot at the end of warm-up", "bytes"),
    Column("generation", "int64", "how often the arena had been replaced"),
    Column("locked", "bool", "the arena was locked"),
    Column("capturing", "bool", "a CUDA graph was being captured"),
    Column("escaped", "bool", "larger than the arena was at its lock"),
    *_STEP_STATE,
    Column("shapes", "string", "dtype and shape of each buffer"),
    _KIND,
    _DRAFT,
)

SITES: Final[tuple[Column, ...]] = (
    _RUN,
    _FILE,
    _FUNCTION,
    _CALLER,
    *map(_known, _SLOT),
    *map(_known, (_WARMUP, _SERVING, _ARENA)),
    *_BOUND,
    Column("escaped", "bool", "some request was larger than the arena at its lock"),
    Column("calls", "int64", "calls counted, over phases and ranks"),
    Column("requests", "int64", "requests recorded: those that were new in some way"),
    Column("ranks", "int64", "ranks that asked here"),
    Column("layers", "int64", "layers seen asking here"),
    Column("replayed", "bool", "captured, not seen in serving: unknown, as in a replay"),
)

STEPS: Final[tuple[Column, ...]] = (
    _RUN,
    *_RANKS,
    _known(_STEP),
    _KIND,
    _PHASE,
    Column("wall_ns", "int64", "time of its first recorded request since 1970, UTC", "ns"),
    *map(_known, _STEP_STATE[:2]),
    _known(_DRAFT),
    _STEP_STATE[2],
    Column("max_scheduled", "Int64", "most tokens scheduled of any request", "tokens"),
    Column("requests", "int64", "workspace requests recorded in the step"),
    Column("bytes", "int64", "the largest of them", "bytes"),
    Column("escaped", "bool", "one of them was larger than the arena at its lock"),
)

FINDINGS: Final[tuple[Column, ...]] = (
    Column("run", "category", "run id; of a log, its name"),
    Column("code", "category", "code, with its page in docs/findings"),
    Column("severity", "category", "how bad, in its order", categories=SEVERITIES),
    Column("title", "category", "the code in a few words"),
    _FILE,
    _FUNCTION,
    _CALLER,
    *_SLOT,
    Column("ranks", "int64", "ranks that show it"),
    Column("layers", "int64", "layers seen"),
    _WARMUP,
    _SERVING,
    _ARENA,
    *_BOUND,
    _PHASE,
    _STEP,
    Column("detail", "string", "one sentence with the evidence"),
    Column("advice", "string", "what to do"),
)

_NULLABLE: Final[dict[Dtype, Dtype]] = {"int64": "Int64", "bool": "boolean"}


def _unknown(column: Column) -> Column:
    """The same column in a table where its value may be unknown."""
    return replace(column, dtype=_NULLABLE.get(column.dtype, column.dtype))


FLEET: Final[tuple[Column, ...]] = (
    Column("run", "string", "run id; of a log, its name"),
    Column("kind", "category", "`run`, `log` or `unread`"),
    Column("verdict", "category", "`clean`, `findings` or `inconclusive`"),
    Column("model", "category", "the model's base name"),
    Column("vllm", "category", "vLLM's version; several by comma"),
    Column("started", "string", "when the run began, UTC; by most of its clocks"),
    Column("hosts", "int64", "hosts that left a trace"),
    Column("run_ranks", "int64", "ranks that left a trace"),
    Column("expected_ranks", "int64", "ranks that the config promises"),
    Column("died", "bool", "the engine died of a refusal"),
    Column("reserved", "bool", "a reserve was applied"),
    Column("codes", "string", "codes of the run's findings, by space"),
    Column("rule", "string", "the known site's rule, where one is for this site"),
    Column("refuted", "string", "what a request of the run says against that rule"),
    *map(_unknown, SITES[1:]),
)
"""Of `wstrace fleet`: a row a site of a run; one row with no site where a run has none."""

TABLES: Final[dict[Table, Sequence[Column]]] = {
    "requests": REQUESTS,
    "sites": SITES,
    "steps": STEPS,
    "findings": FINDINGS,
}
