"""The scenario `overhead`: one process a mode, one after the other, alone on the GPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from tools.gpu import models
from tools.gpu.runner import Runner
from tools.gpu.servers import last_error
from wstrace.errors import WstraceError


@dataclass(frozen=True)
class Load:
    """The engine and what is timed in one mode; `seconds` are for the pairs alone."""

    model: str = "qwen3"
    options: tuple[tuple[str, Any], ...] = ()
    prompt_tokens: int = 500
    block_tokens: int = 600
    warm_batches: int = 2
    pairs: int = 5
    seconds: tuple[tuple[str, float], ...] = (("first", 12.0), ("blocks", 40.0))
    replay_steps: int = 50


TURBO: Final = Load(
    options=(
        ("kv_cache_dtype", "turboquant_4bit_nc"),
        ("max_model_len", 8192),
        ("max_num_batched_tokens", 4096),
        ("max_num_seqs", 8),
        ("kv_cache_memory_bytes", 4 << 30),
        ("enable_prefix_caching", False),
        ("disable_log_stats", True),
    )
)
GRAPHS: Final = {"compilation_config": {"cudagraph_capture_sizes": [1, 2, 4, 8]}}
# Eager first: it starts without compiling, so a deadline that comes early costs less.
MODES: Final[dict[str, dict[str, Any]]] = {
    "eager": {"enforce_eager": True},
    "graphs": GRAPHS,
}


def overhead(run: Runner, load: Load = TURBO, modes: dict[str, Any] | None = None) -> None:
    """tokens/s and TTFT with and without the recorder, graphs on and eager."""
    run.setting(scenario="overhead", load=_plain(load), **run.host.facts())
    for mode, options in (MODES if modes is None else modes).items():
        run.say(f"mode {mode}")
        run.attempt(f"mode {mode}", partial(_measure, run, load, mode, options))


def _measure(run: Runner, load: Load, mode: str, options: dict[str, Any]) -> None:
    folder = run.folder / mode
    folder.mkdir(parents=True, exist_ok=True)
    model = models.make(run.host.caches / "models", load.model)
    engine = {"model": str(model), "load_format": "dummy", **dict(load.options), **options}
    task = folder / "task.json"
    task.write_text(json.dumps({"engine": engine, "load": _plain(load)}, indent=1) + "\n")
    log = folder / "engine.log"
    code = _run([run.host.python, "-P", "-m", "tools.gpu.overhead", str(folder)], run, log)
    if code or not (folder / "result.json").exists():
        raise WstraceError(f"exited with {code}", last_error(log.read_text(errors="replace")))


def _plain(load: Load) -> dict[str, Any]:
    return asdict(load) | {"options": dict(load.options), "seconds": dict(load.seconds)}


def _run(command: list[str], run: Runner, log: Path) -> int:
    """Run in a process group of its own, ended at the deadline; returns the exit code."""
    env = run.host.env() | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, env=env, stdout=output, stderr=output, start_new_session=True
        )
    try:
        return process.wait(run.clock.within(600.0, "overhead"))
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
