"""The gate on this repository's own testbed: clean passes, every escaping pattern fails.

A real `vllm serve` under `wstrace run`, the requests of `wstrace exercise`, then the gate.
"""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from wstrace.testbed.engine import engine_env

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from wstrace.testbed.engine import Server

pytestmark = pytest.mark.engine

LIMITS = (
    *("--max-model-len", "2048"),
    *("--max-num-batched-tokens", "256"),
    *("--max-num-seqs", "8"),
)
# Which finding each pattern must give, and the function that escapes; from the testbed's
# own description of when each one asks (wstrace/testbed/patterns.py).
ESCAPES = [
    pytest.param("continuation", "WS101", "Continuation._continuation_prefill"),
    pytest.param("per_token", "WS102", "PerToken._gather"),
    pytest.param("decode_scratch", "WS102", "DecodeScratch._decode_attention"),
    pytest.param("constant", "WS101", "Constant._get_workspace_buffer"),
    pytest.param("persistent", "WS105", "Persistent._semaphores"),
]


def _wstrace(engine: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(engine / "bin" / "wstrace"), *arguments],
        env=engine_env(prefix=engine),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture
def traced(
    engine: Path, serve: Callable[..., Server], tmp_path: Path
) -> Callable[[str], tuple[Path, subprocess.CompletedProcess[str]]]:
    """`traced(pattern)`: serve it under `wstrace run`, exercise it, stop; (trace, exercise)."""

    def run(pattern: str) -> tuple[Path, subprocess.CompletedProcess[str]]:
        trace = tmp_path / "trace"
        wstrace = str(engine / "bin" / "wstrace")
        before = [wstrace, "run", "-q", "-o", str(trace), "--"]
        server = serve(pattern, *LIMITS, before=before)
        url = f"http://127.0.0.1:{server.port}"
        sent = _wstrace(engine, "exercise", "--url", url, "--max-requests", "20")
        server.stop()
        return trace, sent

    return run


def _gate(engine: Path, trace: Path, *arguments: str) -> tuple[int, Any]:
    done = _wstrace(engine, "gate", str(trace), "--format", "json", *arguments)
    return done.returncode, json.loads(done.stdout)


def test_clean_passes(engine: Path, traced: Callable[..., Any]) -> None:
    """A layer that reserves its worst case survives every corner, and the gate says so.

    The batch's 12 requests fill max_num_seqs, and the warm prefix goes on after all but
    the last 64 tokens of max_model_len, or a block less.
    """
    trace, sent = traced("clean")
    assert sent.returncode == 0, sent.stdout + sent.stderr
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


@pytest.mark.parametrize(("pattern", "finding", "function"), ESCAPES)
def test_every_escaping_pattern_fails(
    pattern: str, finding: str, function: str, engine: Path, traced: Callable[..., Any]
) -> None:
    trace, sent = traced(pattern)
    assert sent.returncode == 1, sent.stdout + sent.stderr
    assert "the server died in corner" in sent.stdout
    code, judged = _gate(engine, trace)
    assert (code, judged["verdict"]) == (1, "findings")
    failing = [f for f in judged["findings"] if f["fails"]]
    assert [(f["code"], f["function"]) for f in failing] == [(finding, function)]
    baseline = str(trace.parent / "known.jsonl")
    assert _gate(engine, trace, "--write-baseline", baseline)[0] == 0
    assert _gate(engine, trace, "--baseline", baseline)[0] == 0
