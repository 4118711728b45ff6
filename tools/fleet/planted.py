"""One run of a made fleet: its engine, its ranks, and at most one planted fault.

Everything goes through the recorder's own writer and records. The sizes are those of two sites:
one whose warm-up makes the arena, and one that continues a prompt and grows with its length.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from wstrace.recorder.state.writer import TraceWriter
from wstrace.trace.records import (
    FORMAT,
    Count,
    Counts,
    End,
    Failure,
    Growth,
    Header,
    Leaf,
    Limit,
    Lock,
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

Fault = Literal[
    "none", "death", "survived", "latent", "risk", "small rank", "dead node", "cut", "torn",
    "clock", "twice", "grown copy", "old format", "all old", "broken line", "killed", "rule",
    "no worker", "restarted",
]  # fmt: skip
SMALL: Final = frozenset(("death", "survived", "latent", "risk"))
"""Faults of an arena that is a quarter of the worst case."""
KIB: Final = 1 << 10
MIB: Final = 1 << 20
SLOT: Final = Slot()
BLOCK, KV_HEADS, HEAD = 16, 4, 64
START_NS: Final = 1_780_000_000 * 10**9  # 2026-05-28, when the first run of a fleet starts
DAY_NS: Final = 24 * 3600 * 10**9
PREFILL: Final = Site(
    id=1,
    file="vllm/v1/attention/backends/fleet_attn.py",
    function="FleetImpl._continuation_prefill",
    line=747,
    caller="fleet_attn.py:747:_continuation_prefill",
)
EXPERTS: Final = Site(
    id=2,
    file="vllm/model_executor/layers/fused_moe/fleet_moe.py",
    function="FleetMoE._allocate_buffers",
    line=77,
    caller="fleet_moe.py:77:_allocate_buffers",
)
KNOWN: Final = Site(
    id=3,
    file="vllm/v1/attention/backends/turboquant_attn.py",
    function="TurboQuantAttentionImpl._continuation_prefill",
    line=747,
    caller="turboquant_attn.py:747:_continuation_prefill",
)
FORMULA: Final = "2 * round256(4 * 64 * 2 * ceil_div(cached_len, 16) * 16)"


def continued(computed: int) -> int:
    """Bytes of a continuation after `computed` tokens: two buffers of 4 heads of 64 fp16, in
    whole blocks of 16 tokens; a multiple of 256 by itself."""
    return 2 * KV_HEADS * HEAD * 2 * (-(-computed // BLOCK) * BLOCK)


@dataclass(frozen=True)
class Plan:
    """A run to write. `ranks` over `hosts`; `dp` engines share them; `day` is when it ran."""

    run: str
    model: str = "fleet-8b"
    vllm: str = "0.32.0"
    ranks: int = 1
    hosts: int = 1
    dp: int = 1
    fault: Fault = "none"
    day: int = 0
    max_model_len: int = 4096
    extra: int = 0

    @property
    def tp(self) -> int:
        """Ranks of one engine."""
        return self.ranks // self.dp

    @property
    def limits(self) -> dict[str, Limit]:
        """What every worker's config says."""
        return {
            "model": self.model,
            "max_model_len": self.max_model_len,
            "max_num_batched_tokens": 256,
            "max_num_seqs": 8,
            "block_size": BLOCK,
            "num_attention_heads": 32,
            "num_kv_heads": KV_HEADS,
            "head_size": HEAD,
            "dtype": "bfloat16",
            "tensor_parallel_size": self.tp,
            "data_parallel_size": self.dp,
            "enforce_eager": False,
        }

    @property
    def bound(self) -> int:
        """The most that a continuation can ask under these limits."""
        return continued(self.max_model_len - 1)

    def host_of(self, rank: int) -> str:
        """The host of a rank: as many ranks on each as there are."""
        return f"node{rank * self.hosts // self.ranks}"

    def ranks_of(self, rank: int) -> Ranks:
        """Its place in the groups."""
        node = rank * self.hosts // self.ranks
        return Ranks(
            dp=rank // self.tp, tp=rank % self.tp, pp=0, rank=rank % self.tp, node=node
        )


@dataclass
class Written:
    """The files of a run, by rank."""

    files: dict[int, Path] = field(default_factory=dict)


def write_run(plan: Plan, folder: Path) -> Written:
    """Write every rank that left a trace, each host into a folder of its own, and run.json."""
    written = Written()
    begun = START_NS + plan.day * DAY_NS
    for rank in range(plan.ranks):
        host = plan.host_of(rank)
        if plan.fault == "dead node" and host == f"node{plan.hosts - 1}":
            continue
        at = folder / host
        at.mkdir(parents=True, exist_ok=True)
        written.files[rank] = _write_rank(plan, rank, at, begun)
    _write_end(plan, folder / "node0", begun)
    return written


def _write_rank(plan: Plan, rank: int, folder: Path, begun: int) -> Path:
    host = plan.host_of(rank)
    far = plan.fault == "clock" and host == f"node{plan.hosts - 1}"
    wall = begun + 2_000_000_000 + (3 * 3600 * 10**9 if far else 0)
    old = plan.fault == "all old" or (plan.fault == "old format" and rank == plan.ranks - 1)

    def header() -> Header:
        return Header(
            format=0 if old else FORMAT,
            run=plan.run,
            wstrace="0.1.0",
            vllm=plan.vllm,
            host=host,
            pid=4000 + rank,
            role=f"VllmWorker-{rank}",
            wall_ns=wall,
        )

    writer = TraceWriter(str(folder), plan.run, header)
    for record in _records(plan, rank):
        writer.write(record)
    path = writer.path
    writer.close()
    assert path is not None
    return path


def _records(plan: Plan, rank: int) -> list[Record]:
    world = Ranks(dp=plan.dp, tp=plan.tp, pp=1, node=plan.hosts)
    start: list[Record] = [
        WorkerInit(ranks=plan.ranks_of(rank), world=world, limits=dict(plan.limits)),
        PREFILL,
        EXPERTS,
        PhaseChange(phase="load"),
        PhaseChange(phase="profile"),
    ]
    if plan.fault == "no worker":
        return start[3:]
    size = plan.bound + MIB - plan.bound % MIB + plan.extra
    if plan.fault in SMALL:
        size = plan.bound // 4
    if plan.fault == "small rank" and rank == plan.ranks - 1:
        size += MIB
    experts = _request(EXPERTS, size, size, "profile", locked=False)
    requests: list[Record] = [experts, _continued(plan.bound, size, "profile", locked=False)]
    if plan.fault == "risk":  # warm-up runs the site, and not as far as serving can
        requests = [_continued(size, size, "profile", locked=False)]
    elif plan.fault in SMALL:
        requests = [experts]
    site = requests[0].site if isinstance(requests[0], Request) else None
    grown = Growth(
        site=site, slot=SLOT, before=0, after=size, phase="profile", window="counted"
    )
    lock = Lock(event="lock", slots=[SLOT], sizes=[size], phase="capture")
    warm: list[Record] = [
        *start,
        requests[0],
        grown,
        *requests[1:],
        PhaseChange(phase="capture"),
        lock,
    ]
    warm += [PhaseChange(phase="post-lock-warmup"), PhaseChange(phase="serving")]
    return [*warm, *_serving(plan, size)]


def _serving(plan: Plan, arena: int) -> list[Record]:
    end: list[Record] = [_counts(), End(steps=12)]
    asked = continued(512)
    match plan.fault:
        case "death":
            asked = arena + 64 * KIB
            failure = Failure(
                kind="arena", site=1, slot=SLOT, required=asked, arena=arena,
                phase="serving", step=_step(asked), text="Workspace is locked",
            )  # fmt: skip
            return [_continued(asked, arena), failure, _counts(), End(steps=9)]
        case "survived":
            asked = arena + 64 * KIB
            growth = Growth(
                site=1, slot=SLOT, before=arena, after=asked, phase="serving",
                locked=True, forced=True, step=_step(asked),
            )  # fmt: skip
            return [_continued(asked, arena), growth, *end]
        case "killed":
            return [_continued(asked, arena), _counts()]
        case "rule":
            # no whole blocks of the tokens that this step had computed
            odd = _request(KNOWN, 1_233 * 256, arena, "serving", step=_step(asked))
            return [KNOWN, odd, *end]
    return [_continued(asked, arena), *end]


def _counts() -> Counts:
    return Counts(
        step=12,
        steps_real=12,
        max_tokens=256,
        max_reqs=2,
        max_computed=512,
        max_continued=448,
        counts=[Count(1, SLOT, "serving", 4, 0)],
    )


def _step(size: int) -> Step:
    computed = size // (2 * KV_HEADS * HEAD * 2)
    request = ScheduledRequest(scheduled=256, computed=computed)
    return Step(index=9, total_tokens=256, num_reqs=1, requests=[request])


def _continued(
    size: int, arena: int, phase: Any = "serving", *, locked: bool = True
) -> Request:
    computed = size // (2 * KV_HEADS * HEAD * 2)
    leaf = Leaf(name="cached_len", kind="driver", value=computed, role="num_computed_tokens")
    made = Provenance(formula=FORMULA, leaves=[leaf])
    step = _step(size) if phase == "serving" else None
    return _request(
        PREFILL, size, arena, phase, locked=locked, provenance=made, step=step,
        layer="model.layers.0.self_attn.attn",
    )  # fmt: skip


def _request(
    site: Site, size: int, arena: int, phase: Any, *, locked: bool = True, **more: Any
) -> Request:
    return Request(
        site=site.id, slot=SLOT, bytes=size, arena=arena, phase=phase, locked=locked, **more
    )


def _write_end(plan: Plan, folder: Path, begun: int) -> None:
    """run.json of the host that started it."""
    from datetime import UTC, datetime

    from wstrace.trace.run_file import RunFile

    folder.mkdir(parents=True, exist_ok=True)
    started = datetime.fromtimestamp(begun // 10**9, UTC).isoformat()
    died = plan.fault == "death"
    meta = RunFile(
        run=plan.run,
        command=["vllm", "serve", plan.model],
        started=started,
        wstrace="0.1.0",
        ended=None if plan.fault == "killed" else started,
        exit_code=None if plan.fault == "killed" else int(died),
        on_growth="grow" if plan.fault == "survived" else "raise",
    )
    (folder / f"run.{plan.run}.json").write_bytes(msgspec.json.encode(meta))
