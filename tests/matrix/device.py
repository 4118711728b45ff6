"""A device memory counter in the place of torch's, so that vLLM's own arithmetic can run.

The arenas are those of vLLM's real manager (CPU tensors, counted as device memory); weights,
activations and graphs are numbers that the scenario sets. Nothing is cached: what torch
reserved is what it allocated.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

GIB = 1 << 30
OTHERS = 3 * GIB


@dataclass
class Device:
    """Bytes in use by name; `peak` is the most that torch held since the last reset."""

    total: int = 80 * GIB
    used: dict[str, int] = field(default_factory=dict)
    peak: int = 0

    def allocated(self) -> int:
        """Bytes of live tensors: arenas, and what the scenario set."""
        manager = getattr(sys.modules["vllm.v1.worker.workspace"], "_manager", None)
        tensors = [t for t in getattr(manager, "_current_workspaces", []) if t is not None]
        arenas = {t.data_ptr(): t.numel() for t in tensors}
        return sum(self.used.values()) + int(sum(arenas.values()))

    def hold(self, name: str, size: int) -> None:
        """`size` bytes under this name from now on."""
        self.used[name] = size
        self.note()

    def spike(self, size: int) -> None:
        """`size` bytes that come and go: activations."""
        self.peak = max(self.peak, self.allocated() + size)

    def note(self) -> None:
        """Let the peak see what is allocated now."""
        self.spike(0)

    def reset_peak(self, *device: Any) -> None:
        self.peak = self.allocated()

    def stats(self, *device: Any) -> dict[str, int]:
        self.note()
        return {
            "allocated_bytes.all.peak": self.peak,
            "allocated_bytes.all.current": self.allocated(),
        }

    def reserved(self, *device: Any) -> int:
        return self.allocated()

    def info(self, *device: Any) -> tuple[int, int]:
        """(free, total); OTHERS are held by something that is not torch."""
        return self.total - OTHERS - self.allocated(), self.total

    def usage(self, *device: Any) -> int:
        """What CudaPlatform.get_current_memory_usage returns, which also resets the peak."""
        self.reset_peak()
        return self.allocated()


def platform(device: Device) -> SimpleNamespace:
    """`current_platform` of a CUDA device."""
    return SimpleNamespace(
        current_device=lambda: 0,
        device_name="cuda",
        empty_cache=lambda: None,
        get_current_memory_usage=device.usage,
        get_device_capability=lambda *index: (9, 0),
        graph_pool_handle=object,
        is_cuda=lambda: True,
        is_cuda_alike=lambda: True,
        is_integrated_gpu=lambda *index: False,
        is_rocm=lambda: False,
        is_xpu=lambda: False,
        mem_get_info=device.info,
        memory_reserved=device.reserved,
        memory_stats=device.stats,
        reset_peak_memory_stats=device.reset_peak,
    )


@contextmanager
def simulated(device: Device, *modules: Any) -> Iterator[None]:
    """torch's memory functions, and `current_platform` in `modules`, are `device`'s."""
    functions: dict[str, Callable[..., Any]] = {
        "memory_stats": device.stats,
        "mem_get_info": device.info,
        "get_memory_info": device.info,
        "memory_reserved": device.reserved,
        "reset_peak_memory_stats": device.reset_peak,
        "empty_cache": lambda: None,
        "synchronize": lambda *_index: None,
    }
    with ExitStack() as stack:
        for owner in (torch.cuda, torch.accelerator):
            for name, function in functions.items():
                stack.enter_context(patch.object(owner, name, function, create=True))
        for module in (sys.modules["vllm.platforms"], *modules):
            one = platform(device)
            stack.enter_context(patch.object(module, "current_platform", one, create=True))
        yield


def unsplit(*args: Any, **kwargs: Any) -> Any:
    """In the place of the allocator's split limit, which needs a CUDA allocator."""
    return nullcontext()
