"""What the scenarios add to a worker: the memory witness, and dummy weights made whole.

`--worker-extension-cls tools.gpu.extension.Extension`: vLLM imports this module in the worker,
before it loads the model, and mixes the class into its own.
"""

from __future__ import annotations

from functools import wraps
from typing import Any, Final

from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

from tools.gpu.witness import MemoryWitness

# What a model's own load_weights does at its end, and `--load-format dummy`, which never calls
# load_weights, leaves out. DeepSeek-V4 since vLLM 0.26: its first layer asserts that it was
# done.
UNFINISHED: Final = ("finalize_mhc_broadcast_weights",)


class Extension(MemoryWitness):
    """Mixed into vLLM's worker class."""


def finish(model: Any) -> None:
    """Call what dummy loading left out, on `model.model` where it has it."""
    inner = getattr(model, "model", None)
    for name in UNFINISHED:
        method = getattr(inner, name, None)
        if method is not None:
            method()


def finished(load_weights: Any) -> Any:
    """`load_weights(loader, model, ...)` of a loader, followed by `finish(model)`."""

    @wraps(load_weights)
    def method(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        result = load_weights(self, model, *args, **kwargs)
        finish(model)
        return result

    return method


DummyModelLoader.load_weights = finished(DummyModelLoader.load_weights)
