"""The prototype's events of real H100 runs, converted into a wstrace trace.

What the prototype did not see is filled in as the real run had it: the requests of phase
capture are marked as captured (a graph a request), and serving begins after capture_model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Final

from wstrace.findings.analysed_run import AnalysedRun, analyse
from wstrace.recorder.state.kv_memory import MemoryState
from wstrace.trace.process_file import ProcessTrace
from wstrace.trace.reader import Trace
from wstrace.trace.records import (
    FORMAT,
    Capture,
    Growth,
    Header,
    Limit,
    Lock,
    Phase,
    PhaseChange,
    Ranks,
    Record,
    Request,
    ScheduledRequest,
    Site,
    Slot,
    Spec,
    Step,
    WorkerInit,
)
from wstrace.versions import release_of

DATA: Final = Path(__file__).parents[2] / "data" / "field"
FILE: Final = "vllm/v1/attention/backends/turboquant_attn.py"
ITEMSIZE: Final = {"torch.float16": 2, "torch.bfloat16": 2, "torch.float32": 4}
METHODS: Final[dict[str, Phase]] = {
    "load_model": "load",
    "profile_run": "profile",
    "initialize_kv_cache": "kv-init",
    "capture_model": "capture",
}
LIMITS: Final[dict[str, Limit]] = {
    "max_num_seqs": 8,
    "num_attention_heads": 16,
    "num_kv_heads": 4,
    "head_size": 128,
    "num_layers": 8,
    "tensor_parallel_size": 1,
    "cudagraph_capture_sizes": [1, 2, 4, 8],
    "cudagraph_mode": "FULL_AND_PIECEWISE",
    "cache_dtype": "turboquant_4bit_nc",
    "enable_prefix_caching": True,
}
RUNS: Final[dict[str, tuple[str, str, dict[str, Limit]]]] = {
    "vllm-0.21.0-grow": (
        "0.21.0",
        "vllm.v1.worker.gpu_model_runner.GPUModelRunner",
        {
            "max_model_len": 32768,
            "max_num_batched_tokens": 4096,
            "block_size": 16,
            "enable_chunked_prefill": True,
        },
    ),
    "vllm-0.21.0-reserve-at-init": (
        "0.21.0",
        "vllm.v1.worker.gpu_model_runner.GPUModelRunner",
        {
            "max_model_len": 32768,
            "max_num_batched_tokens": 4096,
            "block_size": 16,
            "enable_chunked_prefill": True,
        },
    ),
    "vllm-0.26.0-prefix": (
        "0.26.0",
        "vllm.v1.worker.gpu.model_runner.GPUModelRunner",
        {
            "max_model_len": 16384,
            "max_num_batched_tokens": 16384,
            "block_size": 32,
            "enable_chunked_prefill": False,
        },
    ),
}


@dataclass
class Converter:
    """Walks the events of one run in order. A `get` comes before the growth it causes."""

    memory: MemoryState
    phase: Phase = "init"
    served: bool = False
    arena: int = 0
    generation: int = 0
    graphs: int = 0
    sites: dict[str, int] = field(default_factory=dict)
    pending: dict[str, Any] | None = None

    def records(self, events: list[dict[str, Any]]) -> Iterator[Record]:
        """All records, the ones of a request after those of its growth, as wstrace has it."""
        for event in events:
            if event["ev"] == "grow":
                yield from self._grow(event)
                continue
            yield from self._asked()
            match event["ev"]:
                case "get":
                    self.pending = event
                case "lock":
                    yield Lock(
                        event="lock", slots=[Slot()], sizes=event["sizes"], phase=self.phase
                    )
                case "begin" | "end":
                    yield from self._method(event)
        yield from self._asked()

    def _method(self, event: dict[str, Any]) -> Iterator[Record]:
        begins = event["ev"] == "begin"
        self.served = self.served or (event["what"] == "capture_model" and not begins)
        self.phase = (
            METHODS[event["what"]] if begins else ("serving" if self.served else "init")
        )
        yield PhaseChange(phase=self.phase, why=event["what"])

    def _grow(self, event: dict[str, Any]) -> Iterator[Record]:
        site, before, self.arena = None, self.arena, event["req"]
        assert event["cur"] == before
        if self.pending is not None:
            yield from self._site(self.pending["caller"])
            site = self.sites[_function(self.pending["caller"])]
        self.generation += 1
        phase = self._phase_of(self.pending or event)
        locked = event["locked"]
        yield Growth(
            site=site,
            slot=Slot(),
            before=before,
            after=self.arena,
            phase=phase,
            step=_step(event),
            generation=self.generation,
            locked=locked,
            forced=locked,
            kept_bytes=before if locked else 0,
            reserve=site is None,
            window=self.memory.window(phase),
        )

    def _asked(self) -> Iterator[Record]:
        event, self.pending = self.pending, None
        if event is None:
            return
        yield from self._site(event["caller"])
        specs = [_spec(shape, dtype) for shape, dtype in event["shapes"]]
        capturing = self._phase_of(event) == "capture"
        self.graphs += capturing
        yield Request(
            site=self.sites[_function(event["caller"])],
            slot=Slot(),
            bytes=sum(spec.bytes for spec in specs),
            arena=self.arena,
            phase=self._phase_of(event),
            step=_step(event),
            generation=self.generation,
            locked=event["locked"],
            capturing=capturing,
            specs=specs,
        )
        if capturing:
            yield Capture(graph=self.graphs, slots=[Slot()], generations=[self.generation])

    def _phase_of(self, event: dict[str, Any]) -> Phase:
        """Between kv-init and capture_model 0.21 estimates the graphs' memory."""
        if self.phase == "init" and "caller" in event:
            return "graph-estimate"
        return self.phase

    def _site(self, caller: str) -> Iterator[Record]:
        function = _function(caller)
        if function not in self.sites:
            self.sites[function] = len(self.sites) + 1
            file, line, _ = caller.split(":")
            name = function.rpartition(".")[2]
            yield Site(
                id=self.sites[function],
                file=FILE,
                function=function,
                line=int(line),
                caller=f"{file}:{line}:{name}",
            )


def _function(caller: str) -> str:
    return caller.split(":")[2]


def _spec(shape: list[int], dtype: str) -> Spec:
    size = -(-prod(shape) * ITEMSIZE[dtype] // 256) * 256
    return Spec(shape=shape, dtype=dtype.removeprefix("torch."), bytes=size)


def _step(event: dict[str, Any]) -> Step:
    """A prefix hit shows as a new request (id, computed); a running one as `computed`."""
    state = event.get("sched") or {"n": 0, "per": [], "computed": [], "new": []}
    computed = [n for _, n in state["new"]] + state["computed"]
    requests = [
        ScheduledRequest(scheduled=s, computed=c)
        for s, c in zip(state["per"], computed, strict=False)
    ]
    return Step(
        index=max(event["step"], 0),
        kind="real" if requests else "dummy",
        total_tokens=state["n"],
        num_reqs=len(state["per"]),
        requests=requests,
    )


def convert(run: str, events: int | None = None) -> AnalysedRun:
    """The analysed trace of a run; `events` cuts it after so many events."""
    version, runner, limits = RUNS[run]
    lines = (DATA / f"{run}.jsonl").read_text().splitlines()[:events]
    memory = MemoryState(vllm=release_of(version))
    ranks = Ranks(dp=0, tp=0, pp=0, rank=0)
    records: list[Record] = [
        WorkerInit(
            ranks=ranks, world=Ranks(dp=1, tp=1, pp=1), limits=LIMITS | limits, runner=runner
        )
    ]
    records += Converter(memory).records([json.loads(line) for line in lines])
    header = Header(format=FORMAT, run=run, wstrace="0.1", vllm=version, on_growth="grow")
    process = ProcessTrace(Path(run), header, records)
    return analyse(Trace(Path(run), run, [process]))
