"""Converts the prototype's events of real H100 runs into wstrace's requests."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any, Final

from wstrace.trace.records import Limit, Phase, Request, ScheduledRequest, Slot, Spec, Step

DATA: Final = Path(__file__).parents[2] / "data" / "h100"
LIMITS: Final[dict[str, Limit]] = {
    "max_model_len": 32768,
    "max_num_batched_tokens": 4096,
    "max_num_seqs": 8,
    "block_size": 16,
    "num_attention_heads": 16,
    "num_kv_heads": 4,
    "head_size": 128,
    "num_layers": 8,
    "tensor_parallel_size": 1,
    "cudagraph_capture_sizes": [1, 2, 4, 8],
    "max_cudagraph_capture_size": 8,
    "enable_chunked_prefill": True,
    "cache_dtype": "turboquant_4bit_nc",
}
FILE: Final = "vllm/v1/attention/backends/turboquant_attn.py"
_ITEMSIZE: Final = {"torch.float16": 2, "torch.bfloat16": 2, "torch.float32": 4}
_PHASES: Final[dict[str, Phase]] = {"init": "graph-estimate", "capture": "capture"}


def requests(run: str, function: str) -> list[Request]:
    """The requests of `function` (its qualified name) in one run, in order."""
    lines = (DATA / f"vllm-0.21.0-turboquant-{run}.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    return [
        _request(e) for e in events if e["ev"] == "get" and e["stack"][0].endswith(function)
    ]


def growths(run: str) -> list[tuple[int, int]]:
    """(required, current) of every growth, as the arena itself reported them."""
    lines = (DATA / f"vllm-0.21.0-turboquant-{run}.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    return [(e["req"], e["cur"]) for e in events if e["ev"] == "grow"]


def _request(event: dict[str, Any]) -> Request:
    specs = [_spec(shape, dtype) for shape, dtype in event["shapes"]]
    return Request(
        site=1,
        slot=Slot(),
        bytes=sum(spec.bytes for spec in specs),
        arena=0,
        phase=_PHASES.get(event["phase"], "serving"),
        step=_step(event),
        locked=event["locked"],
        specs=specs,
    )


def _spec(shape: list[int], dtype: str) -> Spec:
    size = -(-prod(shape) * _ITEMSIZE[dtype] // 256) * 256
    return Spec(shape=shape, dtype=dtype.removeprefix("torch."), bytes=size)


def _step(event: dict[str, Any]) -> Step | None:
    sched = event["sched"]
    if sched is None:
        return None
    computed = [*sched["computed"], *(cached for _, cached in sched["new"])]
    requests = [
        ScheduledRequest(scheduled=n, computed=c)
        for n, c in zip(sched["per"], computed, strict=True)
    ]
    return Step(
        index=event["step"],
        total_tokens=sched["n"],
        num_reqs=len(requests),
        requests=requests,
    )
