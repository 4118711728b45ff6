"""Ray nodes that are not as they should be: of another wstrace, or dead."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tools import ROOT
from tools.fleet.planted import Plan, write_run

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(1200)]
FAR = "127.0.0.2"
Cluster = Any


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A cluster of one node."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        yield started
    finally:
        started.shutdown()


def wstrace(cluster: Cluster, *words: str) -> tuple[int, str, str]:
    """The installed program, started where no node would find a wstrace."""
    program = str(Path(sys.executable).with_name("wstrace"))
    told = subprocess.run(
        [program, *words], cwd="/", env=os.environ | {"RAY_ADDRESS": cluster.address},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return told.returncode, told.stdout, told.stderr


def another(folder: Path) -> None:
    """A copy of this wstrace that says that it is an older one."""
    shutil.copytree(ROOT / "wstrace", folder / "wstrace")
    init = folder / "wstrace" / "__init__.py"
    text = init.read_text()
    init.write_text(text.replace('__version__ = "0.1.0"', '__version__ = "0.0.9"'))
    assert init.read_text() != text


def test_doctor_says_which_node_has_another_wstrace(cluster: Cluster, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    another(there)
    cluster.add_node(num_cpus=1, env_vars={"PYTHONPATH": str(there)}, node_ip_address=FAR)
    code, out, err = wstrace(cluster, "doctor", "--ray", "-o", str(tmp_path))
    told = [line for line in out.splitlines() if "Ray node" in line]
    assert code == 1, out + err
    assert sorted(line.partition(" ")[0] for line in told) == ["FAIL", "ok"], out + err
    assert "wstrace 0.0.9, here 0.1.0" in next(line for line in told if line[0] == "F")


def test_a_dead_node_is_told_and_the_rest_is_brought(cluster: Cluster, tmp_path: Path) -> None:
    write_run(Plan(run="a", ranks=4, hosts=2), tmp_path / "far")
    node = cluster.add_node(num_cpus=1, node_ip_address=FAR)
    cluster.remove_node(node, allow_graceful=False)
    words = ("gather", f"ray:{tmp_path / 'far'}", "-o", str(tmp_path / "here"))
    code, out, err = wstrace(cluster, *words)
    assert (code, "5 files copied" in out, "(raylet)" in out) == (1, True, False), out + err
    assert "not copied: " in err
    # Ray has noticed by now, and says so on standard output, of which it does not keep off
    code, out, err = wstrace(cluster, *words)
    assert (code, "5 there before" in out, "(raylet)" in out) == (1, True, False), out + err
    assert f"({FAR}): this Ray node is gone" in err
    code, out, err = wstrace(
        cluster, "doctor", "--ray", "-o", str(tmp_path), "--format", "json"
    )
    checks = {c["name"]: c for c in json.loads(out)["checks"] if c["name"].startswith("Ray")}
    assert (code, len(checks)) == (0, 2), out + err
    (dead,) = (check for name, check in checks.items() if FAR in name)
    assert (dead["state"], dead["detail"]) == ("warn", "is gone from the cluster")


def test_doctor_names_a_node_whose_wstrace_is_an_empty_package(
    cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "there" / "wstrace").mkdir(parents=True)
    (tmp_path / "there" / "wstrace" / "__init__.py").write_text("")
    there = {"PYTHONPATH": str(tmp_path / "there")}
    cluster.add_node(num_cpus=1, env_vars=there, node_ip_address=FAR)
    code, out, err = wstrace(cluster, "doctor", "--ray", "-o", str(tmp_path))
    told = [line for line in out.splitlines() if "Ray node" in line]
    assert code == 1, out + err
    assert sorted(line.partition(" ")[0] for line in told) == ["FAIL", "ok"], out + err


def test_doctor_names_a_node_on_which_no_worker_can_start(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "sitecustomize.py").write_text(
        "import os, sys\nif 'default_worker' in ' '.join(sys.orig_argv): os._exit(3)\n"
    )
    there = {"PYTHONPATH": str(tmp_path / "there")}
    cluster.add_node(num_cpus=1, env_vars=there, node_ip_address=FAR)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "sitecustomize.py").write_text(
        "import wstrace.gather.ray_cluster as c\nc.START_SECONDS = 40\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'here'}")
    code, out, err = wstrace(cluster, "doctor", "--ray", "-o", str(tmp_path))
    told = [line for line in out.splitlines() if "Ray node" in line]
    assert code == 1, out + err
    assert sorted(line.partition(" ")[0] for line in told) == ["FAIL", "ok"], out + err
    assert "Ray started no worker there in 40 seconds" in " ".join(out.split())
