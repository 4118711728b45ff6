"""A testbed layer with the mistake of WS302: it keeps a view of the arena."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.worker.workspace import current_workspace_manager


class KeepsView:
    """Takes its scratch once, at its first forward pass, and uses it in every later one."""

    def __init__(self, impl: Any, vllm_config: Any) -> None:
        (self.scratch,) = current_workspace_manager().get_simultaneous(
            ((impl.num_heads, impl.head_size), torch.float32)
        )

    def forward(self, query: torch.Tensor, attn_metadata: Any) -> None:
        self.scratch.zero_()
