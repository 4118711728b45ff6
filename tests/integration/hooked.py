"""A pytest plugin: vLLM's workspace manager on a machine without an accelerator; with the
recorder's hooks on, as in a worker, where WSTRACE_DIR is set.

WSTRACE_DIR=folder pytest -p tests.integration.hooked ...
"""

from __future__ import annotations

import importlib
import os

import torch

from wstrace.recorder.hooks.manager import hook_manager
from wstrace.recorder.install import install


def pytest_configure() -> None:
    """Before a test module takes the manager."""
    if not torch.accelerator.is_available():
        torch.accelerator.empty_cache = lambda: None  # a growth calls it; it raises without one
    if os.environ.get("WSTRACE_DIR"):
        hook_manager(install(), importlib.import_module("vllm.v1.worker.workspace"))
