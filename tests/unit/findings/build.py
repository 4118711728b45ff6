"""Small runs made of records, for tests of the analysis and of the reports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from wstrace.trace.records import (
    FORMAT,
    Counts,
    Growth,
    Header,
    Leaf,
    Limit,
    Lock,
    Phase,
    PhaseChange,
    Provenance,
    Ranks,
    Record,
    Request,
    ScheduledRequest,
    Site,
    Slot,
    Step,
    WorkerInit,
)

# What reads traces is imported where it is used: a stand-in only builds records.
if TYPE_CHECKING:
    from wstrace.findings.analysed_run import AnalysedRun
    from wstrace.trace.process_file import ProcessTrace

LIMITS: dict[str, Limit] = {
    "model": "tiny",
    "max_model_len": 2048,
    "max_num_batched_tokens": 256,
    "max_num_seqs": 8,
    "block_size": 16,
    "num_attention_heads": 8,
    "num_kv_heads": 4,
    "head_size": 64,
    "dtype": "bfloat16",
    "cudagraph_mode": "FULL_AND_PIECEWISE",
    "enforce_eager": False,
    "enable_chunked_prefill": True,
}
CONTINUATION = Site(
    id=1,
    file="vllm/v1/attention/backends/some_attn.py",
    function="SomeImpl._continuation_prefill",
    line=747,
    caller="some_attn.py:747:_continuation_prefill",
)
MOE = Site(
    id=2,
    file="vllm/model_executor/layers/fused_moe/other.py",
    function="Other._allocate_buffers",
    line=10,
    caller="other.py:10:_allocate_buffers",
)
DECODE_SIZE = 67_840


def continuation_bytes(computed: int) -> int:
    """Two buffers of 4 heads * round_up(computed, 16) * 64 float16, each rounded to 256."""
    padded = -(-computed // 16) * 16
    one = 4 * padded * 64 * 2
    return 2 * (-(-one // 256) * 256)


def continuation_provenance(computed: int) -> Provenance:
    """What the slicer says of a continuation of `computed` cached tokens."""
    part = "round256(num_kv_heads * round_up(num_computed_tokens, block_size) * head_size * 2)"
    return Provenance(
        formula=f"2 * {part}",
        leaves=[
            Leaf(name="num_kv_heads", kind="constant", value=4),
            Leaf(name="block_size", kind="constant", value=16),
            Leaf(name="head_size", kind="constant", value=64),
            Leaf(
                name="num_computed_tokens",
                kind="driver",
                value=computed,
                role="num_computed_tokens",
            ),
        ],
        statements=["some_attn.py:747: get_simultaneous(...)", "some_attn.py:740: n = a - b"],
    )


def ask(
    site: Site,
    size: int,
    phase: Phase,
    arena: int,
    *,
    slot: Slot | None = None,
    locked: bool | None = None,
    provenance: Provenance | None = None,
    step: Step | None = None,
    **more: Any,
) -> Request:
    """One request; locked follows the phase where it is not given."""
    after = phase in ("serving", "post-lock-warmup")
    return Request(
        site=site.id,
        slot=slot or Slot(),
        bytes=size,
        arena=arena,
        phase=phase,
        locked=after if locked is None else locked,
        provenance=provenance,
        step=step or Step(index=5),
        **more,
    )


def continuation(computed: int, arena: int, phase: Phase = "serving") -> Request:
    """A continuation request of `computed` cached tokens, with its provenance and step."""
    return ask(
        CONTINUATION,
        continuation_bytes(computed),
        phase,
        arena,
        provenance=continuation_provenance(computed),
        step=Step(
            index=9,
            total_tokens=256,
            num_reqs=1,
            requests=[ScheduledRequest(scheduled=256, computed=computed)],
        ),
    )


def grown(size: int, phase: Phase, *, before: int = 0, site: Site = MOE, **more: Any) -> Growth:
    """The arena of slot (0, 0) grew to `size`; `more` are other fields of the record."""
    values: dict[str, Any] = {
        "slot": Slot(),
        "before": before,
        "after": size,
        "phase": phase,
    } | more
    return Growth(site=site.id, **values)


def locked(size: int, *slots: Slot) -> list[Record]:
    """lock() in capture_model, then the rest of warm-up, then serving, with one real step."""
    where = list(slots) or [Slot()]
    return [
        Lock(event="lock", slots=where, sizes=[size] * len(where), phase="capture"),
        PhaseChange(phase="post-lock-warmup"),
        PhaseChange(phase="serving"),
        Counts(step=1, steps_real=1),
    ]


def process(
    *records: Record,
    ranks: Ranks | None = None,
    world: Ranks | None = None,
    limits: dict[str, Limit] | None = None,
    vllm: str | None = "0.32.0",
    runner: str = "vllm.v1.worker.gpu_model_runner.GPUModelRunner",
) -> ProcessTrace:
    """One worker's file: header, worker, both sites, then `records`."""
    from wstrace.trace.process_file import ProcessTrace

    worker = WorkerInit(
        ranks=ranks or Ranks(dp=0, tp=0, pp=0, rank=0),
        world=world or Ranks(dp=1, tp=1, pp=1),
        limits={**LIMITS, **(limits or {})},
        runner=runner,
    )
    header = Header(format=FORMAT, run="run1", wstrace="0.1.0", vllm=vllm, torch="2.13.0")
    told = [worker, CONTINUATION, MOE, *records]
    return ProcessTrace(Path("x.wst.jsonl"), header, told, sized=True)


def session(*processes: ProcessTrace, allow_unlocked: bool = False) -> AnalysedRun:
    """The analysed run of these workers, under a script that ended in order."""
    from wstrace.findings.analysed_run import analyse
    from wstrace.trace.reader import Trace
    from wstrace.trace.run_file import RunFile

    meta = RunFile("run1", ["python", "ask.py"], "", "0.1.0", ended="later", exit_code=0)
    trace = Trace(Path("trace"), "run1", list(processes), meta)
    return analyse(trace, allow_unlocked=allow_unlocked)


CLEAN: tuple[Record, ...] = (
    grown(1 << 20, "profile"),
    ask(MOE, 1 << 20, "profile", 0),
    *locked(1 << 20),
    PhaseChange(phase="serving"),
    ask(MOE, 1 << 20, "serving", 1 << 20),
    Counts(step=40, steps_real=39),
)


def with_exit(run: AnalysedRun, code: int | None) -> AnalysedRun:
    """`run` under a command that ended with `code`."""
    from wstrace.findings.analysed_run import analyse
    from wstrace.trace.reader import Trace
    from wstrace.trace.run_file import RunFile

    meta = RunFile("run1", ["vllm", "serve"], "", "0.1.0", ended="later", exit_code=code)
    return analyse(Trace(run.trace.path, "run1", run.trace.processes, meta))
