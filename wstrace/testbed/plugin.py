"""The entry point `vllm.general_plugins: wstrace_testbed`; vLLM calls it in every process.

It is in no installed package: vLLM finds it where `wstrace/testbed/on_path` is on PYTHONPATH.
"""

from __future__ import annotations

import os


def register() -> None:
    """Give the CPU engine what GPU workers have, where `WSTRACE_TESTBED` asks for it.

    Without the variable nothing is imported and nothing is patched. An unknown pattern
    raises: the testbed is a test tool, and a test that runs without it proves nothing.
    """
    if not os.environ.get("WSTRACE_TESTBED"):
        return
    from wstrace.testbed import settings, worker

    worker.install(settings.from_environment(os.environ))
