"""Trace folders of made-up runs, written record by record as the recorder writes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from wstrace.trace.records import (
    FORMAT,
    Capture,
    Count,
    Counts,
    End,
    Growth,
    Header,
    Leaf,
    Lock,
    PhaseChange,
    Provenance,
    Ranks,
    Record,
    Request,
    ReserveEvent,
    ScheduledRequest,
    Site,
    Slot,
    Step,
    WorkerInit,
)

KIB = 1 << 10
MIB = 1 << 20
SLOT = Slot()
LIMITS: dict[str, Any] = {
    "model": "tiny-qwen3",
    "max_model_len": 4096,
    "max_num_batched_tokens": 256,
    "max_num_seqs": 8,
    "block_size": 16,
}
CONTINUATION = Site(
    id=1,
    file="vllm/v1/attention/backends/tiny_attn.py",
    function="TinyImpl._continuation_prefill",
    line=812,
    caller="tiny_attn.py:812:_continuation_prefill",
    path="/opt/venv/lib/python3.11/site-packages/vllm/v1/attention/backends/tiny_attn.py",
)
NEIGHBOUR = Site(
    id=2,
    file="vllm/model_executor/layers/fused_moe/tiny_moe.py",
    function="TinyMoE.forward",
    line=77,
    caller="tiny_moe.py:77:forward",
)
# Two buffers of 4 heads, the computed tokens in whole blocks of 16, 64 fp16 each.
FORMULA = "2 * round256(4 * 64 * 2 * ceil_div(cached_len, 16) * 16)"
CONTINUATION_BOUND = 2 * 4 * 64 * 2 * 4096


def continuation_bytes(computed: int) -> int:
    """What `CONTINUATION` asks for after `computed` tokens: a multiple of 256 already."""
    return 2 * 4 * 64 * 2 * (-(-computed // 16) * 16)


def continuation(computed: int, arena: int, **changes: Any) -> Request:
    """A request of `CONTINUATION` in serving, with the provenance that proves its bound."""
    leaf = Leaf(name="cached_len", kind="driver", value=computed, role="num_computed_tokens")
    return ask(
        1,
        continuation_bytes(computed),
        arena,
        **(
            {
                "provenance": Provenance(formula=FORMULA, leaves=[leaf]),
                "step": Step(
                    index=5,
                    total_tokens=64,
                    num_reqs=1,
                    requests=[ScheduledRequest(scheduled=64, computed=computed)],
                ),
                "layer": "model.layers.0.self_attn.attn",
            }
            | changes
        ),
    )


def ask(site: int, size: int, arena: int, **changes: Any) -> Request:
    """A request; in serving and locked unless `phase` says otherwise."""
    values: dict[str, Any] = {"phase": "serving", "locked": True, "slot": SLOT} | changes
    return Request(site=site, bytes=size, arena=arena, **values)


def warm(site: int, size: int, **changes: Any) -> Request:
    """A request in the profile run."""
    return ask(site, size, size, **({"phase": "profile", "locked": False} | changes))


def lock(size: int, slots: Sequence[Slot] = (SLOT,)) -> Lock:
    """The lock, all slots at one size."""
    return Lock(event="lock", slots=list(slots), sizes=[size] * len(slots), phase="capture")


def phase(name: Any) -> PhaseChange:
    """The worker entered a phase."""
    return PhaseChange(phase=name)


def counts(**changes: Any) -> Counts:
    """Counters of a short run: 12 steps, 2 requests at most, 512 tokens computed at most."""
    values: dict[str, Any] = {
        "step": 12,
        "steps_real": 12,
        "max_tokens": 128,
        "max_reqs": 2,
        "max_computed": 512,
        "max_continued": 448,
        "counts": [Count(1, SLOT, "serving", 4, 0)],
    }
    return Counts(**(values | changes))


@dataclass
class Run:
    """Where a run's files go, and what its workers have in common; `over`: they ended in
    order."""

    folder: Path
    run: str = "20260516T101500Z-1a2b3c4d"
    world: Ranks = field(default_factory=lambda: Ranks(dp=1, tp=1, pp=1))
    limits: dict[str, Any] = field(default_factory=lambda: dict(LIMITS))
    over: bool = True

    def worker(self, *records: Record, rank: int = 0, host: str = "node0") -> Path:
        """The file of the worker of TP rank `rank`, with both sites."""
        worker = WorkerInit(
            ranks=Ranks(dp=0, tp=rank, pp=0, rank=rank), world=self.world, limits=self.limits
        )
        told = (worker, CONTINUATION, NEIGHBOUR, *records, *([End()] if self.over else []))
        return self.process(*told, rank=rank, host=host)

    def process(self, *records: Record, rank: int = 0, host: str = "node0") -> Path:
        """A file with a header and any records."""
        header = Header(
            format=FORMAT,
            run=self.run,
            wstrace="0.1.0",
            vllm="0.32.0",
            host=host,
            pid=4000 + rank,
            wall_ns=1,
        )
        self.folder.mkdir(exist_ok=True, parents=True)
        path = self.folder / f"{host}.{4000 + rank}.1.abcd.wst.jsonl"
        path.write_bytes(_lines([header, *records]))
        return path


def _lines(records: Iterable[Record]) -> bytes:
    return b"".join(msgspec.json.encode(record) + b"\n" for record in records)


# -- whole runs ------------------------------------------------------------------------------


def clean(folder: Path, **of_run: Any) -> Path:
    """Locked at the continuation's bound; serving stays below what warm-up asked."""
    size = CONTINUATION_BOUND
    Run(folder, **of_run).worker(
        phase("profile"),
        warm(1, size, **_proof(4095)),
        lock(size),
        phase("serving"),
        continuation(448, size),
        counts(),
    )
    return folder


def _proof(computed: int) -> dict[str, Any]:
    made = continuation(computed, 0)
    return {"provenance": made.provenance}


def escape(folder: Path, computed: int = 2048, **of_run: Any) -> Path:
    """WS101: the continuation first asks after the lock, above the arena."""
    arena = 64 * KIB
    Run(folder, **of_run).worker(
        phase("profile"),
        warm(2, arena),
        lock(arena),
        phase("serving"),
        continuation(computed, arena),
        counts(),
    )
    return folder


def latent(folder: Path, arena: int, **of_run: Any) -> Path:
    """WS103: the continuation fits an arena that its neighbour made; its bound may not."""
    Run(folder, **of_run).worker(
        phase("profile"),
        warm(2, arena),
        lock(arena),
        phase("serving"),
        continuation(512, arena),
        counts(),
    )
    return folder


def pointer(folder: Path, **of_run: Any) -> Path:
    """WS301: an arena that a captured graph holds was replaced, unlocked, in serving."""
    Run(folder, **of_run).worker(
        phase("capture"),
        warm(2, 64 * KIB),
        Capture(graph=7, slots=[SLOT], generations=[1]),
        lock(64 * KIB),
        phase("serving"),
        Growth(
            site=2,
            slot=SLOT,
            before=64 * KIB,
            after=128 * KIB,
            phase="serving",
            generation=2,
        ),
        counts(),
    )
    return folder


def eager(folder: Path, **of_run: Any) -> Path:
    """Served and never locked, as enforce_eager does."""
    run = Run(folder, **of_run)
    run.limits["enforce_eager"] = True
    run.worker(
        phase("profile"),
        warm(2, 64 * KIB),
        Growth(site=2, slot=SLOT, before=0, after=64 * KIB, phase="profile"),
        phase("serving"),
        ask(2, 64 * KIB, 64 * KIB, locked=False),
        counts(),
    )
    return folder


def killed_before_lock(folder: Path, **of_run: Any) -> Path:
    """The worker died in warm-up; its last line is cut."""
    run = Run(folder, over=False, **of_run)
    path = run.worker(phase("profile"), warm(2, 64 * KIB), phase("warmup"))
    path.write_bytes(path.read_bytes() + b'{"t":"request","si')
    return folder


def refused(folder: Path, **of_run: Any) -> Path:
    """--reserve-policy skip: the reserve did not fit and the server went on."""
    Run(folder, **of_run).worker(
        phase("profile"),
        ReserveEvent(event="refused", why="the config is of another model", policy="skip"),
        warm(2, 64 * KIB),
        lock(64 * KIB),
        phase("serving"),
        ask(2, 64 * KIB, 64 * KIB),
        counts(),
    )
    return folder
