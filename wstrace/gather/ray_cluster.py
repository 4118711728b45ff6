"""An existing Ray cluster, joined once a process."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from wstrace.errors import WstraceError


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
    try:
        ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
    except Exception as error:
        raise WstraceError(
            f"No Ray cluster was found: {str(error).splitlines()[0]}",
            "Start one with `ray start --head`, or name one in RAY_ADDRESS.",
        ) from error
    return ray
