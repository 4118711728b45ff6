"""A rule finds its function where vLLM has renamed the class around it, and says so."""

from __future__ import annotations

import pytest

from wstrace.bounds.ways import bound_site
from wstrace.known_sites import known
from wstrace.trace.records import Limit, Request, Slot, Spec

FILE = "vllm/models/deepseek_v4/nvidia/flashmla.py"
CLASS = "DeepseekV4FlashMLASparseImpl"  # 0.22.1; DeepseekV4MLAAttention in 0.20
LIMITS: dict[str, int] = {
    "max_model_len": 16384,
    "max_num_batched_tokens": 2048,
    "sliding_window": 128,
    "head_size": 512,
    "compress_ratio": 4,
    "max_num_seqs": 256,
    "index_topk": 512,
}


@pytest.mark.parametrize("method", ["_forward_prefill", "forward_mqa"])
def test_the_rule_of_a_renamed_class_holds_for_an_h200(method: str) -> None:
    """Report 41700 on an H200: 4 * (16384/4 + 128 + 2048) rows of 512 bf16 are 24.50 MiB."""
    asked = 4 * (4096 + 128 + 2048) * 512 * 2
    request = Request(site=1, slot=Slot(), bytes=asked, arena=22675456, phase="serving")
    found = bound_site(
        [request], LIMITS, file=FILE, function=f"{CLASS}.{method}", vllm_version="0.22.1"
    )
    assert (found.bytes, found.grade) == (25690112, "proved")
    assert found.known_site == "deepseek_v4.prefill_gather"
    assert f"the rule does not know {CLASS}" in found.why


def test_another_method_or_another_file_is_not_taken_for_it() -> None:
    assert known.matches(FILE, f"{CLASS}._forward_decode") == ()
    assert known.matches("vllm/models/other/flashmla.py", f"{CLASS}._forward_prefill") == ()


def test_a_class_that_the_rule_knows_needs_no_note() -> None:
    (rule, *_) = known.matches(FILE, "DeepseekV4FlashMLAAttention._forward_prefill")
    assert rule.found_by == ""


def test_a_class_of_a_plugin_is_found_by_its_base_and_only_fitted() -> None:
    """A subclass of TurboQuant's in a file of its own, with the method anew: the rule gives the
    buffers, but nobody read the code. K and V of 1,024 tokens, blocks of 16, 4 heads of 128."""
    limits: dict[str, Limit] = {
        "max_model_len": 4096, "num_kv_heads": 4, "head_size": 128, "block_size": 16,
    }  # fmt: skip
    buffer = 4 * 1024 * 128 * 2
    specs = [Spec([4, 1024, 128], "float16", buffer)] * 2
    request = Request(
        site=1, slot=Slot(), bytes=2 * buffer, arena=0, phase="serving", specs=specs,
        classes={"caller": ["OurImpl", "TurboQuantAttentionImpl", "AttentionImpl"]},
    )  # fmt: skip
    found = bound_site(
        [request], limits, file="ours.py", function="OurImpl._continuation_prefill"
    )
    assert (found.bytes, found.grade) == (2 * 4 * 4096 * 128 * 2, "fitted")
    assert "found by its base class TurboQuantAttentionImpl" in found.why
    assert "its own code was not read" in found.why
    other = bound_site([request], limits, file="ours.py", function="OurImpl._decode_attention")
    assert other.grade == "observed"
