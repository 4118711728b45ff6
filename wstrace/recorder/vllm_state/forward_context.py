"""vLLM's forward context: how the step that runs now is run."""

from __future__ import annotations

import sys
from typing import Any


def graph_mode() -> str:
    """The step's CUDA graph mode (NONE, PIECEWISE, FULL); "" outside of a step."""
    # vLLM 0.13.0 to 0.33.0: set_forward_context keeps it in this variable of its module.
    context: Any = getattr(sys.modules.get("vllm.forward_context"), "_forward_context", None)
    mode = getattr(context, "cudagraph_runtime_mode", None)
    return str(getattr(mode, "name", "") or "")
