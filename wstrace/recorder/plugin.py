"""The entry point `vllm.general_plugins: wstrace`.

vLLM loads it in the API server, EngineCore and every worker, and does not guard the call:
an exception here would kill the process. With no `WSTRACE_*` setting it returns at once.
"""

from __future__ import annotations

import os

SWITCHES = (
    *("WSTRACE_DIR", "WSTRACE_RESERVE", "WSTRACE_GUARD"),
    *("VLLM_WSTRACE_DIR", "VLLM_WSTRACE_RESERVE", "VLLM_WSTRACE_GUARD"),
)


def register() -> None:
    """Attach the recorder to this process if a `WSTRACE_*` variable asks for it."""
    if not any(name in os.environ for name in SWITCHES):
        return
    try:
        from wstrace.recorder.install import install

        install()
    except Exception as error:
        os.write(2, f"wstrace: recorder not attached: {error!r}\n".encode())
