"""The gate on this repository's own testbed: clean passes, every escaping pattern fails.

A real `vllm serve` under `wstrace run`, asked by `wstrace exercise`, as the CI recipes do it.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from wstrace.testbed.engine import SERVE, engine_env, free_port

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.engine

RECORD_TRACE = Path(__file__).parents[2] / "docs" / "ci" / "record-trace"
LIMITS = (
    *("--max-model-len", "2048"),
    *("--max-num-batched-tokens", "256"),
    *("--max-num-seqs", "8"),
)
# Which finding each pattern must give, and the function that escapes; from the testbed's
# own description of when each one asks (wstrace/testbed/patterns.py).
ESCAPES = {
    "continuation": ("WS101", "Continuation._continuation_prefill"),
    "per_token": ("WS102", "PerToken._gather"),
    "decode_scratch": ("WS102", "DecodeScratch._decode_attention"),
    "constant": ("WS101", "Constant._get_workspace_buffer"),
    "persistent": ("WS105", "Persistent._semaphores"),
}


@pytest.fixture
def traced(engine: Path, model: Path, tmp_path: Path) -> Callable[..., tuple[Path, str]]:
    """`traced(pattern, **env)`: what the recipes do; (trace, what it printed)."""

    def run(pattern: str, **env: str) -> tuple[Path, str]:
        done = subprocess.run(
            [str(RECORD_TRACE), "trace", str(model), *SERVE, *LIMITS],
            cwd=tmp_path,
            env=engine_env(
                pattern,
                prefix=engine,
                PATH=f"{engine / 'bin'}:{os.environ['PATH']}",
                PORT=str(free_port()),
                READY_SECONDS="1800",
                MAX_REQUESTS="20",
                MAX_SECONDS="600",
                **env,
            ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return tmp_path / "trace", done.stdout

    return run


def _gate(engine: Path, trace: Path, *arguments: str) -> tuple[int, Any]:
    done = subprocess.run(
        [str(engine / "bin" / "wstrace"), "gate", str(trace), "--format", "json", *arguments],
        cwd=trace.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, json.loads(done.stdout)


def test_clean_passes(engine: Path, traced: Callable[..., Any]) -> None:
    """A layer that reserves its worst case survives every corner, and the gate says so.

    The batch's 12 requests fill max_num_seqs, and the warm prefix goes on after all but
    the last 64 tokens of max_model_len, or a block less.
    """
    trace, sent = traced("clean")
    assert "all 20 requests were answered" in sent
    code, judged = _gate(engine, trace, "--min-exercise", "reqs=100%,continued=90%,share=90%")
    assert (code, judged["verdict"]) == (0, "clean"), judged
    (run,) = judged["runs"]
    assert run["exercised"]["reqs"] == {"most": 8, "limit": 8}
    assert run["exercised"]["tokens"] == {"most": 256, "limit": 256}
    continued = run["exercised"]["continued"]
    assert continued["limit"] == 2047
    assert continued["most"] >= 2047 - 256
    code, judged = _gate(engine, trace, "--min-exercise", "steps=1000000")
    assert (code, judged["verdict"]) == (3, "inconclusive")


def test_an_escape_ends_the_server_and_fails(engine: Path, traced: Callable[..., Any]) -> None:
    trace, sent = traced("continuation", ON_GROWTH="raise")
    assert "the server died in corner" in sent
    assert _failing(engine, trace) == [ESCAPES["continuation"]]


def test_every_escaping_pattern_fails(engine: Path, traced: Callable[..., Any]) -> None:
    """All of them in one server that grows: it survives each, and none hides another."""
    trace, sent = traced(",".join(ESCAPES), ON_GROWTH="grow")
    assert "all 20 requests were answered" in sent
    assert sorted(_failing(engine, trace)) == sorted(ESCAPES.values())
    baseline = str(trace.parent / "known.jsonl")
    assert _gate(engine, trace, "--write-baseline", baseline)[0] == 0
    assert _gate(engine, trace, "--baseline", baseline)[0] == 0


def _failing(engine: Path, trace: Path) -> list[tuple[str, str]]:
    code, judged = _gate(engine, trace)
    assert (code, judged["verdict"]) == (1, "findings")
    return [(f["code"], f["function"]) for f in judged["findings"] if f["fails"]]
