"""What vLLM's own code carries to the workers of its Ray executors, read there by the plugin.

Their functions choose the variables and a Ray actor on the second node takes them; the
executors themselves are in test_ray_executors.py.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tools.bench.fleet import two_nodes

pytestmark = pytest.mark.fleet

DRIVER = """
import os, sys
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from vllm.ray.ray_env import get_env_vars_to_copy
from vllm.v1.executor.ray_env_utils import get_driver_env_vars
from vllm.v1.executor.ray_utils import WORKER_SPECIFIC_ENV_VARS

if sys.argv[1] == "v2":
    carried = get_driver_env_vars(worker_specific_vars=WORKER_SPECIFIC_ENV_VARS)
else:
    names = get_env_vars_to_copy(exclude_vars=WORKER_SPECIFIC_ENV_VARS)
    carried = {name: os.environ[name] for name in names if name in os.environ}

@ray.remote(num_cpus=0)
def on_worker(carried, own):
    import os
    from wstrace.recorder.settings import text_of
    before = text_of(os.environ, "RUN")
    for name, value in carried.items():  # V2 keeps what a node has of its own
        os.environ.setdefault(name, value) if own else os.environ.update({name: value})
    return before, text_of(os.environ, "RUN"), os.environ.get("NOT_OURS", "")

ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False)
here = ray.get_runtime_context().get_node_id()
far = sorted(n["NodeID"] for n in ray.nodes() if n["NodeID"] != here)
there = NodeAffinitySchedulingStrategy(node_id=far[0], soft=False)
print("CARRIED", *map(repr, ray.get(
    on_worker.options(scheduling_strategy=there).remote(carried, sys.argv[1] == "v2"))))
"""


@pytest.mark.parametrize(
    ("executor", "name", "arrives"),
    [
        ("v2", "WSTRACE_RUN", True),
        ("v2", "VLLM_WSTRACE_RUN", True),
        ("older", "WSTRACE_RUN", False),
        ("older", "VLLM_WSTRACE_RUN", True),
    ],
)
def test_what_arrives_at_a_worker_of_each_executor(
    executor: str, name: str, arrives: bool
) -> None:
    pytest.importorskip("vllm")
    with two_nodes():
        told = subprocess.run(
            [sys.executable, "-c", DRIVER, executor], capture_output=True, text=True,
            check=False, env=os.environ | {name: "launch-7", "NOT_OURS": "x"},
        )  # fmt: skip
    assert told.returncode == 0, told.stderr[-2000:]
    (line,) = (line for line in told.stdout.splitlines() if line.startswith("CARRIED"))
    run = "launch-7" if arrives else ""
    # V2 carries everything, the older one its own names
    assert line == f"CARRIED '' {run!r} {'x' if executor == 'v2' else ''!r}"
