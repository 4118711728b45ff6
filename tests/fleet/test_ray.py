"""`wstrace fleet` on two local Ray nodes, and a fleet of 2,000 runs (scripts/fleet-tests)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.bench.fleet import two_nodes
from tools.fleet.found import wrong
from tools.fleet.generate import write_fleet

pytestmark = pytest.mark.fleet


def fleet(folder: Path, *words: str) -> dict[str, Any]:
    """The JSON that the program prints."""
    command = [sys.executable, "-m", "wstrace.cli.app", "fleet", str(folder), "--no-cache"]
    told = subprocess.run(
        [*command, "--format", "json", *words], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr
    return dict(json.loads(told.stdout))


def test_two_ray_nodes_give_the_same_rows(tmp_path: Path) -> None:
    planted = write_fleet(tmp_path, 120, 32, seed=7)
    traces = tmp_path / "traces"
    with two_nodes():
        far = fleet(traces, "--engine", "ray")
    assert wrong(far["runs"], planted) == []
    assert far == fleet(traces, "--jobs", "1")


def test_without_a_cluster_two_lines_say_what_to_start(tmp_path: Path) -> None:
    write_fleet(tmp_path, 1, 1, seed=7)
    command = [sys.executable, "-m", "wstrace.cli.app", "fleet", str(tmp_path), "--no-cache"]
    told = subprocess.run(
        [*command, "--engine", "ray"], capture_output=True, text=True, check=False
    )
    assert told.returncode == 2
    assert told.stderr.splitlines()[0].startswith("wstrace: No Ray cluster was found")
    assert "ray start --head" in told.stderr.splitlines()[-1]


def test_two_thousand_runs_of_up_to_512_ranks(tmp_path: Path) -> None:
    planted = write_fleet(tmp_path, 2000, 512, seed=1)
    told = fleet(tmp_path / "traces", "--jobs", "2")
    assert wrong(told["runs"], planted) == []
    assert len(told["runs"]) == len(planted) > 2000
