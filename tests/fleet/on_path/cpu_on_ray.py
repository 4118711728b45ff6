"""A platform plugin for vLLM that a test has: the CPU, which Ray takes for a GPU."""

from __future__ import annotations


def register() -> str:
    """The platform's class, as vLLM's entry point `vllm.platform_plugins` wants it."""
    return "cpu_on_ray_platform.CpuOnRay"
