"""The names that bind are words of vLLM's source, but for those of other releases."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from wstrace.slicer import binding
from wstrace.versions import package_version

# Not in 0.32: one that no release read has, a function up to 0.18.1, a class up to 0.24.0.
ELSEWHERE = {"max_decode_seq_len", "unified_mla_attention", "SparseMLAAttentionImpl"}
FOLDERS = ("v1", "model_executor/layers", "model_executor/models", "models", "distributed")


def _words() -> set[str]:
    """Every word of the folders that hold vLLM's metadata, layers and groups."""
    spec = find_spec("vllm")
    if (
        spec is None
        or spec.origin is None
        or not str(package_version("vllm")).startswith("0.32.")
    ):
        pytest.skip("needs the pinned engine, vLLM 0.32")
    root = Path(spec.origin).parent
    files = [root / "forward_context.py"]
    for folder in FOLDERS:
        files += (root / folder).rglob("*.py")
    return {word for file in files for word in re.findall(r"\w+", file.read_text())}


def test_names_that_bind_stand_in_the_pinned_release() -> None:
    names = {*binding.HOLDERS, *binding.SCALARS, *binding.SERIES, *binding.TENSORS}
    names |= {part for entry in binding.ENTRIES for part in entry.split(".")}
    names |= {*binding.IMPLS, *binding.IMPL_ENTRIES}
    names |= {name for group, (_, held) in binding.GROUPS.items() for name in (group, held)}
    assert names - _words() == ELSEWHERE
