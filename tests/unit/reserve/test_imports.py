"""What reading a reserve config loads inside a worker of vLLM."""

from __future__ import annotations

import subprocess
import sys


def test_the_config_loads_nothing_heavy_and_yaml_only_when_it_reads() -> None:
    code = "import sys, wstrace.reserve.config; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert "wstrace.reserve.evaluate" in loaded
    assert not loaded & {"yaml", "pandas", "typer", "rich", "plotly", "pydantic", "jinja2"}
    assert not any(name.startswith("wstrace.bounds") for name in loaded)
