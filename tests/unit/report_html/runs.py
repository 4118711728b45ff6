"""Synthetic runs, built from records as the recorder writes them. Sizes are bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from wstrace.findings.analysed_run import AnalysedRun, analyse
from wstrace.trace.process_file import ProcessTrace
from wstrace.trace.reader import Trace
from wstrace.trace.records import (
    Capture,
    Count,
    Counts,
    Failure,
    Growth,
    Header,
    Hook,
    Leaf,
    Limit,
    Lock,
    Manager,
    Memory,
    Phase,
    PhaseChange,
    Provenance,
    Ranks,
    Record,
    Request,
    ReserveEvent,
    ScheduledRequest,
    Site,
    Slot,
    Spec,
    Step,
    WorkerInit,
)
from wstrace.trace.run_file import RunFile

MIB = 1 << 20
ATTENTION = "vllm/v1/attention/backends/turboquant_attn.py"
CONTINUATION = "TurboQuantAttentionImpl._continuation_prefill"
MOE = "vllm/model_executor/layers/fused_moe/modular_kernel.py"
EXPERTS = "FusedMoEKernelModularImpl._fused_experts"
SLOT = Slot()
OTHER = Slot(1, 0)
LIMITS: dict[str, Limit] = {
    "model": "qwen3-8b-tq",
    "max_model_len": 16384,
    "max_num_batched_tokens": 2048,
    "max_num_seqs": 64,
    "block_size": 16,
    "num_kv_heads": 8,
    "head_size": 128,
    "num_layers": 36,
    "tensor_parallel_size": 2,
    "cudagraph_mode": "FULL_AND_PIECEWISE",
    "enforce_eager": False,
    "enable_prefix_caching": True,
    "dtype": "bfloat16",
}
FORMULA = "2 * round256(heads * ceil_div(cached_len, block) * block * head_size * 2)"
STATEMENTS = [
    f"{ATTENTION}:812: alloc_len = cdiv(cached_len, block) * block",
    f"{ATTENTION}:809: cached_len = seq_len - query_len",
]


def attention_bytes(computed: int) -> int:
    """What the continuation site asks for a cached prefix, by hand: K and V in bfloat16."""
    aligned = -(-computed // 16) * 16
    one = 8 * aligned * 128 * 2
    return 2 * (-(-one // 256) * 256)


class Clock:
    """Hands out rising `ns` values to the records of one process."""

    def __init__(self) -> None:
        self.ns = 1_000_000_000

    def stamp(self, records: Iterable[Record], step_ns: int = 5_000_000) -> list[Record]:
        """The records with their `ns` set, in order."""
        stamped = []
        for record in records:
            self.ns += step_ns
            record.ns = self.ns
            stamped.append(record)
        return stamped


def header(rank: int = 0, **more: object) -> Header:
    """A worker's header."""
    values = {
        "format": 1,
        "run": "20260516T101500Z-0a1b2c3d",
        "wstrace": "0.1.0",
        "vllm": "0.21.0",
        "torch": "2.9.0",
        "python": "3.12.4",
        "host": "gpu-host",
        "pid": 4000 + rank,
        "role": f"VllmWorker-{rank}",
        "ns": 1_000_000_000,
        "wall_ns": 1_780_000_000_000_000_000,
        "argv": ["vllm", "serve", "qwen3-8b-tq", "--max-model-len", "16384"],
    }
    return Header(**{**values, **more})  # type: ignore[arg-type]


def worker(rank: int, tp: int, limits: dict[str, Limit] | None = None) -> list[Record]:
    """The records before the first phase."""
    return [
        Hook(name="WorkspaceManager._ensure_workspace_size", set=True),
        Manager(num_ubatches=2, device=f"cuda:{rank}"),
        WorkerInit(
            ranks=Ranks(dp=0, tp=rank, pp=0, rank=rank),
            world=Ranks(dp=1, tp=tp, pp=1, rank=tp),
            limits={**LIMITS, "tensor_parallel_size": tp, **(limits or {})},
            runner="vllm.v1.worker.gpu_model_runner.GPUModelRunner",
        ),
        Site(
            id=1,
            file=ATTENTION,
            function=CONTINUATION,
            line=812,
            caller=f"turboquant_attn.py:812:{CONTINUATION.split('.')[1]}",
        ),
        Site(
            id=2,
            file=MOE,
            function=EXPERTS,
            line=1127,
            caller="modular_kernel.py:1127:_fused_experts",
        ),
    ]


def phase(name: Phase, step: int = 0) -> PhaseChange:
    """The process enters `name`."""
    return PhaseChange(phase=name, step=step)


def ask(
    size: int, name: Phase, *, site: int = 2, slot: Slot = SLOT, arena: int = 0, **more: object
) -> Request:
    """A request of the MoE site unless told otherwise."""
    values: dict[str, object] = {
        "site": site,
        "slot": slot,
        "bytes": size,
        "arena": arena,
        "phase": name,
        "layer": "model.layers.0.self_attn.attn" if site == 1 else "model.layers.0.mlp.experts",
        "specs": [Spec(shape=[1, size // 2], dtype="bfloat16", bytes=size)],
        "stack": [f"{ATTENTION}:812:{CONTINUATION}" if site == 1 else f"{MOE}:1127:{EXPERTS}"],
    }
    return Request(**{**values, **more})  # type: ignore[arg-type]


def growth(
    before: int,
    after: int,
    name: Phase,
    *,
    site: int | None = 2,
    slot: Slot = SLOT,
    **more: object,
) -> Growth:
    """The arena of `slot` is replaced."""
    values = {"site": site, "slot": slot, "before": before, "after": after, "phase": name}
    return Growth(**{**values, **more})  # type: ignore[arg-type]


def continuation(computed: int, step: int, arena: int, *, locked: bool = True) -> Request:
    """A later chunk of a long prompt: `computed` tokens are cached."""
    leaves = [
        Leaf(name="cached_len", kind="driver", value=computed, role="num_computed_tokens"),
        Leaf(name="heads", kind="constant", value=8, source="self.num_kv_heads"),
        Leaf(name="block", kind="constant", value=16, source="self.block_size"),
        Leaf(name="head_size", kind="constant", value=128, source="self.head_size"),
    ]
    return ask(
        attention_bytes(computed),
        "serving",
        site=1,
        arena=arena,
        locked=locked,
        generation=1,
        step=Step(
            index=step,
            total_tokens=2048,
            num_reqs=1,
            requests=[ScheduledRequest(scheduled=2048, computed=computed)],
        ),
        specs=[
            Spec(
                shape=[1, 8, -(-computed // 16) * 16, 128],
                dtype="bfloat16",
                bytes=attention_bytes(computed) // 2,
            )
        ]
        * 2,
        provenance=Provenance(formula=FORMULA, leaves=leaves, statements=list(STATEMENTS)),
    )


def warm_up(arena: int = 24 * MIB, *, other: int = 0) -> list[Record]:
    """Profiling asks for `arena`, graphs are captured, the slots are locked."""
    records: list[Record] = [
        phase("load"),
        phase("init"),
        phase("profile"),
        growth(0, arena, "profile", window="counted", generation=1),
        ask(arena, "profile", arena=0, step=Step(index=1, kind="dummy", total_tokens=2048)),
    ]
    if other:
        records += [
            growth(0, other, "profile", slot=OTHER, window="counted", generation=1),
            ask(other, "profile", slot=OTHER),
        ]
    return [
        *records,
        Memory(
            available_kv_bytes=48 << 30,
            weights_bytes=16 << 30,
            free_bytes=70 << 30,
            total_bytes=80 << 30,
        ),
        phase("kv-init", 1),
        Memory(num_gpu_blocks=40_000, block_size=16, bytes_per_block=1_179_648),
        phase("warmup", 1),
        ask(arena // 4, "warmup", arena=arena),
        phase("capture", 2),
        ask(arena // 8, "capture", arena=arena, capturing=True, graph=1),
        Capture(graph=1, slots=[SLOT], generations=[1]),
        Capture(graph=2, slots=[SLOT], generations=[1]),
        Lock(event="lock", slots=[SLOT, OTHER], sizes=[arena, other], phase="capture", step=2),
        phase("post-lock-warmup", 2),
        phase("serving", 2),
    ]


def refusal(ask_: Request) -> Failure:
    """vLLM refuses `ask_`."""
    mb = ask_.bytes / MIB
    return Failure(
        kind="arena",
        site=ask_.site,
        slot=ask_.slot,
        required=ask_.bytes,
        arena=ask_.arena,
        phase="serving",
        step=ask_.step,
        text=f"Workspace is locked but allocation from "
        f"'turboquant_attn.py:812:_continuation_prefill' requires {mb:.2f} MB, "
        f"current size is {ask_.arena / MIB:.2f} MB.",
    )


def process(records: Sequence[Record], rank: int = 0, **head: object) -> ProcessTrace:
    """One worker's file."""
    return ProcessTrace(
        Path(f"run.gpu-host.{4000 + rank}.wst.jsonl"),
        header(rank, **head),
        list(records),
        sized=True,
    )


def session(
    *processes: ProcessTrace, meta: RunFile | None = None, path: str = "wstrace-run"
) -> AnalysedRun:
    """The analysed run."""
    started = meta or RunFile(
        run="20260516T101500Z-0a1b2c3d",
        command=["vllm", "serve", "qwen3-8b-tq", "--max-model-len", "16384"],
        started="2026-05-16T10:15:00+00:00",
        wstrace="0.1.0",
        ended="2026-05-16T10:25:00+00:00",
        exit_code=0,
    )
    return analyse(Trace(Path(path), started.run, list(processes), started))


def crashed() -> AnalysedRun:
    """Two ranks, two slots: the second chunk of a long prompt is refused on both."""
    return session(*(process(_crashed_rank(rank), rank) for rank in range(2)))


def _crashed_rank(rank: int) -> list[Record]:
    arena = 24 * MIB
    refused = continuation(8192, 41, arena)
    return Clock().stamp(
        [
            *worker(rank, 2),
            *warm_up(arena, other=6 * MIB),
            ask(
                arena // 2,
                "serving",
                arena=arena,
                locked=True,
                step=Step(index=9, total_tokens=900, num_reqs=3),
            ),
            continuation(2048, 40, arena),
            refused,
            refusal(refused),
            Counts(
                step=41,
                steps_real=39,
                max_tokens=2048,
                max_reqs=3,
                max_computed=8192,
                counts=[
                    Count(2, SLOT, "profile", 36, arena),
                    Count(1, SLOT, "serving", 72, refused.bytes),
                ],
            ),
        ]
    )


def grown(prefixes: Sequence[int] = (2048, 6144, 9000, 15000)) -> AnalysedRun:
    """`--on-growth grow`: several escapes of one site, each survived."""
    arena = 24 * MIB
    records: list[Record] = [*worker(0, 1), *warm_up(arena)]
    now = arena
    for step, computed in enumerate(prefixes, 40):
        wanted = continuation(computed, step, now)
        if wanted.bytes > now:
            records.append(
                growth(
                    now,
                    wanted.bytes,
                    "serving",
                    site=1,
                    locked=True,
                    forced=True,
                    generation=step - 38,
                    step=wanted.step,
                    kept_bytes=now,
                    window="not counted",
                )
            )
            now = wanted.bytes
        records.append(wanted)
    return session(process(Clock().stamp(records)), path="wstrace-grow")


def reserved() -> AnalysedRun:
    """A reserve was applied before profiling; nothing escapes."""
    arena = attention_bytes(16383)
    records: list[Record] = [
        *worker(0, 1),
        phase("profile"),
        growth(0, arena, "profile", site=None, reserve=True, window="counted", generation=1),
        ReserveEvent(event="applied", slots=[SLOT], sizes=[arena], path="reserve.yaml"),
        ask(24 * MIB, "profile", arena=arena),
        phase("capture", 2),
        Lock(event="lock", slots=[SLOT], sizes=[arena], phase="capture", step=2),
        phase("serving", 2),
        continuation(6144, 41, arena),
    ]
    return session(
        process(Clock().stamp(records), reserve="reserve.yaml"), path="wstrace-reserved"
    )


def refused_reserve() -> AnalysedRun:
    """The reserve did not fit this engine: the run says nothing."""
    records: list[Record] = [
        *worker(0, 1),
        phase("profile"),
        ReserveEvent(event="refused", why="the config is for another model", policy="skip"),
        *warm_up(),
    ]
    return session(process(Clock().stamp(records)))


def unlocked() -> AnalysedRun:
    """Eager: no lock; the arena grows in serving."""
    records: list[Record] = [
        *worker(0, 1, {"enforce_eager": True, "cudagraph_mode": "NONE"}),
        phase("profile"),
        growth(0, 24 * MIB, "profile", window="counted", generation=1),
        ask(24 * MIB, "profile"),
        phase("serving", 1),
        growth(
            24 * MIB,
            attention_bytes(9000),
            "serving",
            site=1,
            window="not counted",
            generation=2,
        ),
        continuation(9000, 12, 24 * MIB, locked=False),
    ]
    return session(process(Clock().stamp(records)))


def cut() -> AnalysedRun:
    """Killed during profiling, its last line incomplete."""
    made = process(Clock().stamp([*worker(0, 1), phase("load"), phase("profile")]))
    made.cut = True
    return session(made)


def empty() -> AnalysedRun:
    """A folder without a trace."""
    return analyse(Trace(Path("wstrace-empty"), "", [], None, ["no trace file in this folder"]))


def many_sites(count: int) -> AnalysedRun:
    """`count` sites of one file."""
    sites: list[Record] = [
        Site(
            id=10 + i,
            file="big.py",
            function=f"Layer{i}.forward",
            line=i,
            caller=f"big.py:{i}:forward",
        )
        for i in range(count)
    ]
    requests: list[Record] = [ask((i + 1) * 256, "profile", site=10 + i) for i in range(count)]
    records = [*worker(0, 1), *sites, phase("profile"), *requests, phase("serving", 1)]
    return session(process(Clock().stamp(records)))


def many_ranks(count: int) -> AnalysedRun:
    """`count` tensor-parallel ranks, every eighth locked smaller."""
    processes = [
        process(
            Clock().stamp([*worker(r, count), *warm_up((12 if r % 8 == 7 else 24) * MIB)]), r
        )
        for r in range(count)
    ]
    return session(*processes)
