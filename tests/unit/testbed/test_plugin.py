from __future__ import annotations

import os
import subprocess
import sys

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
