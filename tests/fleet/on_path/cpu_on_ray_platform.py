"""vLLM's CPU platform with the one name that its Ray executors ask for (0.32.0)."""

from __future__ import annotations

from vllm.platforms.cpu import CpuPlatform


class CpuOnRay(CpuPlatform):  # type: ignore[misc]
    """The nodes of the test say that they have a GPU, which Ray only counts."""

    ray_device_key = "GPU"

    @classmethod
    def device_control_id_to_physical_device_id(cls, device_id: str) -> int:
        """Ray's number of the device: nothing is looked up by it."""
        return int(device_id)
