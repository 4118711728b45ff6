"""vLLM's own Ray executor V2 on two Ray nodes: each worker is recorded.

vLLM refuses Ray on a CPU; a platform plugin that only this test has (`on_path`) says otherwise.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from wstrace.findings.analysed_run import load_run
from wstrace.testbed.engine import Server, engine_env, plugin_path
from wstrace.testbed.model import build_model

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(2700)]
ON_PATH = Path(__file__).with_name("on_path")


def test_workers_of_the_ray_executor_are_recorded_on_both_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V2 (0.32.0's default) carries the driver's whole environment. The older executor refuses
    two nodes of one address, as two on one machine are."""
    pytest.importorskip("vllm")
    from ray.cluster_utils import Cluster

    program = Path(sys.prefix) / "bin"
    env = engine_env("continuation")
    env["PYTHONPATH"] = plugin_path(ON_PATH)
    for name, text in env.items():  # what a node of its own would have
        if text != os.environ.get(name):
            monkeypatch.setenv(name, text)
    trace = tmp_path / "trace"
    before = [str(program / "wstrace"), "run", "-q", "--on-growth", "grow", "-o", str(trace)]
    node = {"num_cpus": 2, "num_gpus": 1}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    try:
        cluster.add_node(**node)
        parallel = ("--tensor-parallel-size", "2", "--distributed-executor-backend", "ray")
        with Server(
            build_model(tmp_path / "model"), tmp_path / "serve.log", arguments=parallel,
            before=[*before, "--"], env=env | {"RAY_ADDRESS": cluster.address},
        ) as server:  # fmt: skip
            assert {server.complete(300 + 16 * number).status for number in range(3)} == {200}
    finally:
        cluster.shutdown()
    run = load_run(trace)
    assert [worker.ranks.tp for worker in run.workers] == [0, 1]
    assert all(worker.counts and worker.counts.steps_real for worker in run.workers)
    (escape,) = run.escapes
    assert [ranks.tp for ranks in escape.ranks] == [0, 1]
