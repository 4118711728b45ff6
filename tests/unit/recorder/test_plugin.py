"""The plugin with no WSTRACE_* set: next to nothing; and what the recorder may load."""

from __future__ import annotations

import os
import subprocess
import sys

HEAVY = ("pandas", "plotly", "typer", "rich", "pydantic", "jinja2", "yaml", "torch", "vllm")


def _python(code: str, **env: str) -> str:
    unwanted = ("WSTRACE", "PYTHONDONTWRITEBYTECODE")
    clean = {k: v for k, v in os.environ.items() if not any(u in k for u in unwanted)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=clean | env,
    )
    return done.stdout.strip()


def test_without_settings_it_costs_under_five_milliseconds_and_patches_nothing() -> None:
    code = """
import sys, time, typing
finders = list(sys.meta_path)
start = time.process_time()
from wstrace.recorder.plugin import register
register()
cost = time.process_time() - start
assert sys.meta_path == finders
assert "wstrace.recorder.install" not in sys.modules
print(cost)
"""
    assert any(float(_python(code)) < 0.005 for _ in range(40)), "40 tries, on a busy machine"


def test_importing_the_recorder_loads_nothing_heavy() -> None:
    code = """
import sys
before = set(sys.modules)
import wstrace.recorder.install, wstrace.recorder.record
print(" ".join(sorted({name.partition(".")[0] for name in set(sys.modules) - before})))
"""
    loaded = _python(code).split()
    assert "msgspec" in loaded
    assert not set(HEAVY) & set(loaded)


def test_importing_the_recorder_is_quick_on_top_of_what_vllm_has_loaded() -> None:
    """Beside the parts of the standard library that it builds on, whatever the machine."""
    code = """
import time
start = time.process_time()
import asyncio, concurrent.futures, importlib.metadata, inspect, logging, msgspec.json
import multiprocessing, pathlib, secrets, socket, sysconfig, typing_extensions, weakref
import zipfile, email.message
between = time.process_time()
import wstrace.recorder.install
print((time.process_time() - between) / (between - start))
"""
    assert any(float(_python(code)) < 0.6 for _ in range(10)), "10 tries, on a busy machine"


def test_a_plugin_error_never_reaches_vllm() -> None:
    code = """
import wstrace.recorder.install as install
def broken(): raise RuntimeError("no")
install.install = broken
from wstrace.recorder.plugin import register
register()
print("alive")
"""
    assert _python(code, WSTRACE_DIR="/nonexistent") == "alive"
