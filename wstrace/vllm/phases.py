"""The phases of a worker's life, by the method of vLLM that it is in (`vllm.methods`)."""

from __future__ import annotations

from typing import Literal

Phase = Literal[
    "init",
    "load",
    "profile",
    "graph-estimate",
    "kv-init",
    "warmup",
    "capture",
    "post-lock-warmup",
    "serving",
    "unlocked",
    "sleep",
    "shutdown",
]
