"""The GPU runs as lines of docs/compatibility.md, counted from sample_traces/gpu-tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TABLES = Path(__file__).parents[2] / "sample_traces" / "gpu-tables"
WHAT = {
    "a": "TurboQuant, chunked prefill: crash, growth, reserve, KV sizing",
    "b": "TurboQuant: the builder's reservation, prefix caching, reserve; V2 runner",
    "c": "fused MoE with graphs",
    "d": "TurboQuant, tensor parallel 2",
    "e": "MLA (Triton; V2 runner), sparse MLA with its indexer",
    "f": "FlashAttention, decode context parallel 2",
    "g": "DeepSeek-V4: as released; without its reservation killed, grown, hidden, reserved",
    "h": "TurboQuant: the guard against a server reserved from the start, to the last digit",
    "i": "fused MoE: fp8 by blocks, MXFP4 by Marlin, drafts by n-grams",
    "j": "fused MoE: two data-parallel ranks with expert parallelism",
    "overhead": "speed with and without the recorder",
}


def gpu_table() -> str:
    """A line a run: version, GPUs, what, and how its claims came out."""
    rows = [
        "| vLLM | GPUs | what | claims held | failed | not run |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    kept = {path.stem: json.loads(path.read_text()) for path in sorted(TABLES.glob("*.json"))}
    return "\n".join([*rows, *(_line(name, run) for name, run in kept.items())])


def _line(name: str, run: dict[str, Any]) -> str:
    facts, marks = run["facts"], [claim["ok"] for claim in run["claims"]]
    gpus = [gpu.split(",")[0] for gpu in facts["gpus"]]
    many = f"{len(gpus)} " if len(gpus) > 1 else ""
    cells = [facts["vllm"], f"{many}{gpus[0]}", f"{WHAT[name.partition('-')[0]]} (`{name}`)"]
    counts = [str(marks.count(mark)) for mark in (True, False, None)]
    return f"| {' | '.join([*cells, *counts])} |"
