"""vLLM's own Ray executors: each worker is recorded and its steps are counted, of V2 on two Ray
nodes.

vLLM refuses Ray on a CPU; a platform plugin that only this test has (`on_path`) says otherwise.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from wstrace.findings.analysed_run import load_run
from wstrace.testbed.engine import Server, engine_env, plugin_path
from wstrace.testbed.model import build_model

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(2700)]
STEPS = 5
"""Real steps of one request alone of 300 to 512 tokens: two chunks (at most 256 tokens a step,
no shared prefix), the second with the first of its four tokens, then three."""
ON_PATH = Path(__file__).with_name("on_path")


@pytest.mark.parametrize(
    ("v2", "nodes"),
    [("1", [{"num_cpus": 2, "num_gpus": 1}] * 2), ("0", [{"num_cpus": 3, "num_gpus": 2}])],
    ids=["V2 on two nodes", "the older one on one node"],
)
def test_workers_of_a_ray_executor_are_recorded_and_each_step_counts_once(
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
            _serve_until_counted(server, trace)
    finally:
        cluster.shutdown()
    run = load_run(trace)
    assert [worker.ranks.tp for worker in run.workers] == [0, 1]
    assert not any("stood down" in told for told in run.inconclusive)
    (escape,) = run.escapes
    assert [ranks.tp for ranks in escape.ranks] == [0, 1]


def _serve_until_counted(server: Server, trace: Path) -> None:
    """Ask until both ranks' files count three requests: a step writes them, once a second.

    A step that counted twice would be more than all that was asked by then.
    """
    counted = [0]
    for sent in itertools.count(1):
        assert server.complete(300 + sent % 200).status == 200
        workers = load_run(trace).workers
        counted = [worker.counts.steps_real if worker.counts else 0 for worker in workers]
        assert max(counted) <= STEPS * sent
        if len(counted) == 2 and min(counted) >= STEPS * 3:
            break
