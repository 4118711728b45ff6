"""Record the engine runs whose reports are the examples of some pages in docs/findings.

    .venv-engine/bin/python -m tools.docs.findings_traces [CODE ...]

Each is a real `vllm serve` of the CPU engine under `wstrace run`, with the testbed's layers.
The trace goes to tests/data/docs/CODE, without this
machine's name and paths; then scripts/make-docs examples writes the pages anew.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from tools import ROOT
from wstrace.testbed.engine import Server, engine_env, plugin_path
from wstrace.testbed.model import build_model

DATA = ROOT / "tests" / "data" / "docs"


@dataclass(frozen=True)
class Case:
    """Patterns and prompts of a run; `env` is added, `options` go to `wstrace run`."""

    patterns: str
    prompts: tuple[int, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    killed_in: str = ""


CASES = {
    "ws104": Case(
        "per_token",
        (100,),
        {"WSTRACE_TESTBED_NUM_LANES": "2", "WSTRACE_TESTBED_SERVING_LANE": "1"},
    ),
    "ws105": Case("persistent,decode_scratch", (100,)),
    "ws302": Case(
        "tests.data.keeps_view:KeepsView,decode_scratch", (100, 40), options=("--check-views",)
    ),
    "ws401": Case("per_token", killed_in="load"),
    "ws403": Case(
        "per_token",
        tuple(range(20, 60, 4)),
        {"WSTRACE_MAX_KEYS": "8"},
        ("--on-growth", "grow"),
    ),
}


def server(case: Case, folder: Path) -> Server:
    """The engine under `wstrace run`, its trace in folder/trace."""
    recorded = [sys.executable, "-m", "wstrace.cli.app", "run", "-o", str(folder / "trace")]
    env = engine_env(case.patterns) | case.env | {"PYTHONPATH": plugin_path(ROOT)}
    return Server(
        build_model(folder / "model"),
        folder / "log",
        before=[*recorded, *case.options, "--"],
        env=env,
    )


def record(case: Case, folder: Path) -> None:
    """Serve the prompts, or kill all processes once the worker's trace names a phase."""
    if case.killed_in:
        running = server(case, folder)
        running.start()
        while f'"phase":"{case.killed_in}"' not in written(folder / "trace"):
            if running.exit_code is not None:
                raise running.failed(f"the server ended before the phase {case.killed_in}")
            time.sleep(0.002)
        running._kill_group()
        return
    with server(case, folder) as running:
        for prompt in case.prompts:
            print(f"  {prompt} tokens: {running.complete(prompt).status}")


def written(trace: Path) -> str:
    return "".join(path.read_text() for path in trace.glob("*.jsonl"))


def keep(trace: Path, model: Path, into: Path) -> None:
    """Copy the trace under names that say nothing of this machine."""
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    host = os.uname().nodename
    replaced = {
        str(model): "/opt/model",
        str(Path(sys.prefix)): "/opt/engine",
        str(ROOT): "/opt/wstrace",
        f'"host":"{host}"': '"host":"host"',
    }
    for path in (*trace.glob("*.jsonl"), trace / "run.json"):
        text = path.read_text()
        for ours, plain in replaced.items():
            text = text.replace(ours, plain)
        (into / path.name.replace(f".{host}.", ".host.")).write_text(text)


def main() -> None:
    for name in sys.argv[1:] or CASES:
        print(name)
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            record(CASES[name], folder)
            keep(folder / "trace", folder / "model", DATA / name)


if __name__ == "__main__":
    main()
