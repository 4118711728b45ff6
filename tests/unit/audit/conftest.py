"""A vLLM in miniature: a package with a workspace manager, and files that a test adds."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from wstrace.audit.whole import Audit, audit

MANAGER = """
class WorkspaceManager:
    def get_simultaneous(self, *specs):
        return self._ensure(specs)
    def get_persistent(self, key, shape, dtype):
        return self.get_persistent_resource(key, shape)
    def is_locked(self):
        return False
def current_workspace_manager():
    return WorkspaceManager()
"""
HEAD = """
import torch
from vllm.v1.worker.workspace import current_workspace_manager
"""
META = """
class AttentionMetadataBuilder:
    pass
class AttentionImpl:
    pass
class StepMetadata:
    num_actual_tokens: int
    num_decode_tokens: int
"""
Audited = Callable[..., Audit]


@pytest.fixture
def package(tmp_path: Path) -> Callable[..., Path]:
    """Writes a vllm package with these modules and gives its folder."""

    def written(**files: str) -> Path:
        root = tmp_path / "vllm"
        named = {"v1/worker/workspace.py": MANAGER, "meta.py": META}
        named |= {f"{name}.py": HEAD + textwrap.dedent(text) for name, text in files.items()}
        for name, text in named.items():
            file = root / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return root

    return written


@pytest.fixture
def audited(package: Callable[..., Path]) -> Audited:
    """The audit of a package with these files."""
    return lambda **files: audit(package(**files), "")
