"""An existing Ray cluster, joined once a process."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, Final, TextIO

from wstrace.errors import WstraceError

START_SECONDS: Final = 300
"""A worker starts in 2 to 15 s here, with two cores busy."""


def connected() -> Any:
    """Ray, joined to the cluster that RAY_ADDRESS names, else to the one of this machine.

    Raises WstraceError where Ray is not installed, or no cluster is there.
    """
    try:
        ray: Any = import_module("ray")
    except ImportError as error:
        raise WstraceError(
            "Ray is not installed.", "Install it with `pip install 'wstrace[ray]'`."
        ) from error
    if ray.is_initialized():
        return ray
    sys.stdout = _WithoutRay(sys.stdout)
    try:
        ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
    except Exception as error:
        raise WstraceError(
            f"No Ray cluster was found: {str(error).splitlines()[0]}",
            "Start one with `ray start --head`, or name one in RAY_ADDRESS.",
        ) from error
    return ray


class _WithoutRay:
    """Standard output without what a thread of Ray prints between: a table or JSON stays whole.

    Ray 2.60 prints there that a node died, whatever `log_to_driver` says.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Drop what Ray's threads say."""
        if threading.current_thread().name.startswith("ray_"):
            return len(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def nodes(ray: Any) -> list[tuple[str, str]]:
    """The id and the host's name of every node that lives, by id."""
    alive = [node for node in ray.nodes() if node["Alive"]]
    return sorted((str(n["NodeID"]), str(n["NodeManagerHostname"])) for n in alive)


def gone(ray: Any) -> list[str]:
    """The hosts (and addresses) of which Ray knew a node, and no node lives there now."""
    known = ray.nodes()
    here = {node["NodeManagerAddress"] for node in known if node["Alive"]}
    lost = [node for node in known if node["NodeManagerAddress"] not in here]
    return sorted({f"{n['NodeManagerHostname']} ({n['NodeManagerAddress']})" for n in lost})


def on_node(ray: Any, node: str, work: Callable[..., Any], *arguments: object) -> Any:
    """What `work` gives on that node. OSError where it cannot be done there: the node is gone,
    starts no worker, or has no wstrace."""
    try:
        _answers(ray, node)
        return ray.get(_task(ray, node, work).remote(*arguments))
    except ray.exceptions.RayError as error:
        why = str(error).strip().splitlines()
        raise OSError(
            f"node {node[:12]}: {why[-1] if why else type(error).__name__}"
        ) from error


def _task(ray: Any, node: str, work: Callable[..., Any]) -> Any:
    strategies = import_module("ray.util.scheduling_strategies")
    here = strategies.NodeAffinitySchedulingStrategy(node_id=node, soft=False)
    return ray.remote(num_cpus=0, max_retries=1, scheduling_strategy=here)(work)


@cache
def _answers(ray: Any, node: str) -> None:
    """OSError for a node that does nothing at all: where no worker can start Ray tries again
    for ever. Any other work takes as long as it takes. Ray sends a lambda as it is, without
    wstrace."""
    answer = _task(ray, node, lambda: None).remote()
    done, _ = ray.wait([answer], timeout=START_SECONDS)
    if not done:
        ray.cancel(answer)
        raise OSError(
            f"node {node[:12]}: Ray started no worker there in {START_SECONDS} seconds"
        )
    ray.get(answer)
