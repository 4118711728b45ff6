"""The same scenarios on vLLM's CPU engine with the testbed's layers: a test of the scripts.

It proves nothing about GPUs; it exercises every step before device time is spent on it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from tools.gpu.guarded import guard_turbo
from tools.gpu.overhead_run import Load, overhead
from tools.gpu.runner import Runner
from tools.gpu.scenarios import crash_and_cure, cure_again
from tools.gpu.turbo import Turbo
from wstrace.testbed.engine import TRACED, engine_env

PATTERNS: Final = "decode_scratch,continuation"
TINY: Final = Turbo(
    "tiny",
    (
        *("--max-model-len", "2048", "--max-num-batched-tokens", "256"),
        *("--max-num-seqs", "8", *TRACED),
    ),
    max_model_len=2048,
    chunk=256,
    block=128,
    threshold=32,
    num_kv_heads=4,
    head_size=64,
    short=100,
    deadly=450,
    middle=1200,
    longest_of_six=700,
    longest_of_grow=1850,
)
LIGHT: Final = Load(
    model="tiny",
    options=(
        ("max_model_len", 1024),
        ("max_num_batched_tokens", 512),
        ("max_num_seqs", 1),
        ("enable_prefix_caching", False),
        ("disable_log_stats", True),
        ("compilation_config", {"mode": 2, "backend": "eager"}),
    ),
    prompt_tokens=40,
    block_tokens=150,
    seconds=(("first", 2.0), ("blocks", 10.0)),
    replay_steps=5,
)


def environment() -> dict[str, str]:
    """What the CPU engine needs on top."""
    engine = engine_env(PATTERNS)
    return {name: text for name, text in engine.items() if os.environ.get(name) != text}


def _crash_and_cure(run: Runner) -> None:
    crash_and_cure(run, TINY)


def _cure_again(run: Runner) -> None:
    cure_again(run, TINY)


def _guard(run: Runner) -> None:
    guard_turbo(run, TINY)


def _overhead(run: Runner) -> None:
    overhead(run, LIGHT, {"cpu": {}})


SCENARIOS: Final[dict[str, Callable[[Runner], None]]] = {
    "a": _crash_and_cure,
    "a-cure": _cure_again,
    "h": _guard,
    "overhead": _overhead,
}
