"""A suggested patch applies, and the audit of the patched source says full."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.audit.test_roles_and_matches import FIXED, GATED, MOST, layer, request
from wstrace.audit.suggestion import suggest
from wstrace.audit.whole import audit, reading
from wstrace.errors import WstraceError

Package = Callable[..., Path]
BACKEND = """
class Builder:
    kv_cache_spec: "AttentionSpec"
    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        self.kv_cache_spec = kv_cache_spec
        self.vllm_config = vllm_config

class Backend:
    @staticmethod
    def get_impl_cls():
        return Impl
    @staticmethod
    def get_builder_cls():
        return Builder

class Impl(AttentionImpl):
    def __init__(self, num_kv_heads, head_size):
        self.num_kv_heads = num_kv_heads
        self.head_size = head_size
    def forward(self, layer, query, attn_metadata: StepMetadata):
        rows = attn_metadata.num_actual_tokens
        (k,) = current_workspace_manager().get_simultaneous(
            ((rows, self.num_kv_heads, self.head_size), torch.float16)
        )
        return k
"""
HEADER = "from vllm.meta import AttentionImpl, StepMetadata\n"
SPEC = """
class AttentionSpec:
    num_kv_heads: int
    head_size: int
    block_size: int
"""


def applied(root: Path, patch: str) -> None:
    command = ["git", "apply", "-"]
    subprocess.run(command, input=patch, text=True, cwd=root.parent, check=True)


def turned_full(root: Path, wanted: str) -> str:
    """The patch, once it has turned the request's match to full."""
    made = suggest(reading(root, ""), wanted)
    applied(root, made.patch)
    (site,) = [s for s in audit(root, "").serving if s.name.endswith(wanted)]
    assert site.match == "full", site.reason
    return made.patch


def test_a_gate_is_widened_to_prefix_caching(package: Package) -> None:
    asked = "        (k,) = current"
    below = f"        if query.shape[0] <= 128:\n            return None\n{asked}"
    text = GATED.replace(asked, below)  # as the gate: no continuation of fewer tokens
    patch = turned_full(package(layer=text), "Impl.forward")
    assert "or self.vllm_config.cache_config.enable_prefix_caching" in patch


def test_a_constructors_numbers_are_reserved_in_it(package: Package) -> None:
    patch = turned_full(package(layer=layer(MOST)), "Impl.decode")
    assert "+        if is_workspace_manager_initialized():" in patch


def test_the_builder_reserves_the_worst_case(package: Package) -> None:
    text = HEADER + BACKEND + SPEC
    patch = turned_full(package(layer=text), "Impl.forward")
    assert "self.vllm_config.scheduler_config.max_num_batched_tokens" in patch
    assert "self.kv_cache_spec.head_size" in patch


def test_the_patched_module_is_python(package: Package) -> None:
    root = package(layer=HEADER + BACKEND + SPEC)
    applied(root, suggest(reading(root, ""), "Impl.forward").patch)
    compile((root / "layer.py").read_text(), "layer.py", "exec")


TWO_SHAPES = (HEADER + BACKEND + SPEC).replace(
    "        (k,) = current",
    "        rows = 2 * rows if self.num_kv_heads > 8 else rows\n        (k,) = current",
)


def test_every_shape_of_a_request_is_reserved(package: Package) -> None:
    patch = turned_full(package(layer=TWO_SHAPES), "Impl.forward")
    assert patch.count("+            current_workspace_manager().get_simultaneous(") == 2


SECOND = """
    def forward_cached(self, layer, query, attn_metadata: StepMetadata):
        cached = attn_metadata.seq_lens.max() - attn_metadata.query_lens.max()
        (k,) = current_workspace_manager().get_simultaneous(
            ((attn_metadata.num_decode_tokens, self.head_size), torch.float16)
        )
        (v,) = current_workspace_manager().get_simultaneous(
            ((attn_metadata.num_decode_tokens, 2 * self.head_size), torch.float16)
        )
        return k, v
"""


def test_several_requests_make_one_patch(package: Package) -> None:
    """Two functions, one of them with two requests, in one constructor."""
    root = package(layer=HEADER + BACKEND + SECOND + SPEC, other=layer(MOST))
    wanted = ("Impl.forward", "layer.py:Impl.forward_cached", "other.py:Impl.decode")
    with pytest.raises(WstraceError, match="several requests"):
        suggest(reading(root, ""), "Impl.forward", "")
    made = suggest(reading(root, ""), *wanted)
    applied(root, made.patch)
    assert made.patch.count("+++ b/") == 2
    found = audit(root, "").serving
    assert len(found) == 4
    assert {s.match for s in found} == {"full"}, [s.reason for s in found]
    for name in ("layer.py", "other.py"):
        compile((root / name).read_text(), name, "exec")


@pytest.mark.parametrize(
    ("text", "wanted", "said"),
    [
        (layer(MOST, profiled=request(MOST)), "Impl.decode", "needs no reservation"),
        (layer(MOST), "Impl.nothing", "no serving request"),
        (layer(MOST) + layer(FIXED).replace("Impl", "B"), "decode", "several requests"),
        (layer("((attn_metadata.n,), torch.uint8)"), "Impl.decode", "No place"),
    ],
)
def test_what_cannot_be_suggested_is_said(
    package: Package, text: str, wanted: str, said: str
) -> None:
    with pytest.raises(WstraceError, match=said):
        suggest(reading(package(layer=text), ""), wanted)
