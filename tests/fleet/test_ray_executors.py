"""vLLM's own Ray executors: each worker is recorded, of V2 on two Ray nodes.

vLLM refuses Ray on a CPU; a platform plugin that only this test has (`on_path`) says otherwise.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wstrace.findings.analysed_run import load_run
from wstrace.testbed.engine import Server, engine_env, plugin_path
from wstrace.testbed.model import build_model

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(2700)]
ON_PATH = Path(__file__).with_name("on_path")


@pytest.mark.parametrize(
    ("v2", "nodes"),
    [("1", [{"num_cpus": 2, "num_gpus": 1}] * 2), ("0", [{"num_cpus": 3, "num_gpus": 2}])],
    ids=["V2 on two nodes", "the older one on one node"],
)
def test_workers_of_a_ray_executor_are_recorded(
    v2: str, nodes: list[dict[str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V2 (0.32.0's default) carries the driver's whole environment, the older one `VLLM_*`; it
    refuses two nodes of one address, as two on one machine are."""
    pytest.importorskip("vllm")
    from ray.cluster_utils import Cluster

    env = engine_env("continuation")
    env["PYTHONPATH"] = plugin_path(ON_PATH)
    for name, text in env.items():  # what a node of its own would have
        if text != os.environ.get(name):
            monkeypatch.setenv(name, text)
    trace = tmp_path / "trace"
    trace.mkdir()
    asked = {"DIR": str(trace), "RUN": "launch-7", "ON_GROWTH": "grow"}
    env |= {f"VLLM_WSTRACE_{name}": text for name, text in asked.items()}
    cluster = Cluster(initialize_head=True, head_node_args=nodes[0])
    try:
        for node in nodes[1:]:
            cluster.add_node(**node)
        parallel = ("--tensor-parallel-size", "2", "--distributed-executor-backend", "ray")
        with Server(
            build_model(tmp_path / "model"), tmp_path / "serve.log", arguments=parallel,
            env=env | {"RAY_ADDRESS": cluster.address, "VLLM_USE_RAY_V2_EXECUTOR_BACKEND": v2},
        ) as server:  # fmt: skip
            assert {server.complete(300 + 16 * number).status for number in range(3)} == {200}
    finally:
        cluster.shutdown()
    run = load_run(trace)
    assert [worker.ranks.tp for worker in run.workers] == [0, 1]
    # The older one's workers call the runner's execute_model: no step of the worker is seen.
    steps = [bool(worker.counts and worker.counts.steps_real) for worker in run.workers]
    assert steps == [v2 == "1"] * 2
    (escape,) = run.escapes
    assert [ranks.tp for ranks in escape.ranks] == [0, 1]
