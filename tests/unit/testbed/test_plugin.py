from __future__ import annotations

import os
import subprocess
import sys

import pytest

from wstrace.testbed.engine import engine_env

IDLE = """
import sys, timeit
from wstrace.testbed.plugin import register
before = set(sys.modules)
register()
print(sorted(set(sys.modules) - before))
print(min(timeit.repeat(register, number=1000, repeat=5)) / 1000)
"""


def test_without_the_variable_it_does_nothing() -> None:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("WSTRACE_")}
    done = subprocess.run(
        [sys.executable, "-c", IDLE], env=environ, capture_output=True, text=True, check=True
    )
    imported, seconds = done.stdout.splitlines()
    assert imported == "[]"
    assert float(seconds) < 100e-6


FOUND = """
from importlib.metadata import entry_points
print([e.value for e in entry_points(group="vllm.general_plugins") if "testbed" in e.name])
"""


def found(env: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", FOUND], env=env, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_vllm_finds_it_only_where_the_testbed_is_asked_for() -> None:
    assert found(engine_env()) == "[]"
    assert found(engine_env("clean")) == "['wstrace.testbed.plugin:register']"


def test_a_callers_pythonpath_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    assert engine_env("clean")["PYTHONPATH"].endswith("/testbed/on_path:/theirs")
    assert engine_env()["PYTHONPATH"] == "/theirs"
