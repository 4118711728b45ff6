"""Bounds that were wrong on releases nobody tuned to, each with its true bytes.

The numbers were worked out from vLLM's source: 0.33.0 FlashMLASparseImpl.__init__,
pack_seq_triton, FusedMoEParallelConfig and the prepare/finalize classes.
"""

from __future__ import annotations

from typing import Any

import pytest

from wstrace.bounds.by_rule import rule_bound
from wstrace.bounds.limits import role_limits
from wstrace.bounds.ways import bound_site
from wstrace.known_sites.known import require
from wstrace.trace.records import Request, Slot

MIB = 1 << 20
MLA = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_attention_heads": 16}
V32 = MLA | {"max_model_len": 163_840, "max_num_batched_tokens": 8192, "index_head_dim": 128}
V3_EXPERTS = {"hidden_size": 7168, "moe_intermediate_size": 2048, "top_k": 8, "dtype_size": 2}
MODULAR = "vllm/model_executor/layers/fused_moe/modular_kernel.py"
ALLOCATE = "FusedMoEKernelModularImpl._allocate_buffers"


def worst(site: str, numbers: dict[str, int], version: str = "0.33.0") -> int | None:
    return rule_bound(require(site).at(version), numbers).bytes


@pytest.mark.parametrize(
    ("groups", "total"),
    [
        ({}, 2_369_781_760),
        ({"prefill_context_parallel_size": 2}, 2_369_781_760),
        (
            {
                "prefill_context_parallel_size": 2,
                "decode_context_parallel_size": 8,
                "tensor_parallel_size": 8,
            },
            4_568_121_344,
        ),
    ],
)
def test_sparse_mla_gathers_the_others_shards_under_pcp_and_dcp(
    groups: dict[str, int], total: int
) -> None:
    assert worst("mla.flashmla_sparse_fp8", V32 | groups) == total


def test_rows_without_rotary_dimensions_keep_their_64_columns() -> None:
    """0.33.0, a NoPE model on fp8_ds_mla: 576 columns are asked for, kv_lora_rank is 512."""
    found = rule_bound(require("mla.flashmla_sparse_fp8"), V32 | {"qk_rope_head_dim": 0})
    assert (found.bytes, "for models with rotary" in found.contradiction) == (None, True)


@pytest.mark.parametrize(
    "site",
    [
        "mla.prefill_aiter_fp8",
        "indexer.rocm_aiter",
        "indexer.rocm_paged_logits",
        "indexer.rocm_paged_logits_stage1",
        "indexer.rocm_mxfp4",
        "deepseek_v4.prefill_gather",
        "deepseek_v41.prefill_gather",
    ],
)
def test_rules_that_count_one_ranks_chunks_stand_back_under_pcp(site: str) -> None:
    found = rule_bound(require(site), V32 | {"prefill_context_parallel_size": 2})
    assert (found.bytes, "without prefill context" in found.contradiction) == (None, True)
    alone = rule_bound(require(site), V32 | {"prefill_context_parallel_size": 1})
    assert alone.contradiction == ""


def test_the_indexer_rule_stands_back_under_pcp_and_dcp() -> None:
    """There 2,596,274,176 bytes are asked and more after padding: three pairs of buffers."""
    assert worst("indexer.sparse_attn", V32) == 866_123_776
    both = {"prefill_context_parallel_size": 2, "decode_context_parallel_size": 8}
    found = rule_bound(require("indexer.sparse_attn"), V32 | both)
    assert (found.bytes, "holds only without" in found.contradiction) == (None, True)
    assert rule_bound(require("indexer.sparse_attn"), V32 | {**both, **_one(both)}).bytes


def _one(groups: dict[str, int]) -> dict[str, int]:
    return {next(iter(groups)): 1}


def test_decodes_padded_to_their_longest_in_a_tiny_budget() -> None:
    """Of 8 tokens a step, 5 requests with 4 tokens in one of them make 20 padded rows."""
    numbers = {"max_model_len": 32_768, "max_num_batched_tokens": 8, "max_num_seqs": 8}
    total = worst("indexer.rocm_paged_logits", numbers | {"num_speculative_tokens": 7})
    assert total == 20 * 32_768 * 4 == 2_621_440


@pytest.mark.parametrize("budget", [5, 8, 9, 16, 40])
@pytest.mark.parametrize("seqs", [1, 3, 8])
@pytest.mark.parametrize("drafts", [1, 3, 7])
def test_padded_rows_are_the_most_that_any_batch_makes(
    budget: int, seqs: int, drafts: int
) -> None:
    limits = {
        "max_num_batched_tokens": budget,
        "max_num_seqs": seqs,
        "num_speculative_tokens": drafts,
    }
    longest = range(1, min(drafts + 1, budget) + 1)
    most = max(min(seqs, budget + 1 - width) * width for width in longest)
    assert role_limits(limits)["num_decode_rows"].maximum == most


def test_an_all2all_without_sequence_parallelism_dispatches_every_tp_ranks_copy() -> None:
    """FlashInfer two-sided, DP 2 and TP 8: 16 ranks with 8192 rows of 7168 bf16 each."""
    numbers = V3_EXPERTS | {
        "max_num_batched_tokens": 8192,
        "data_parallel_size": 2,
        "tensor_parallel_size": 8,
        "expert_parallel_size": 16,
    }
    assert worst("moe.output_only", numbers) == 1792 * MIB
    assert worst("moe.output_only", numbers | {"sequence_parallel_size": 8}) == 224 * MIB


def test_each_ranks_rows_are_rounded_up_to_the_tp_ranks_that_split_them() -> None:
    """DP * round_up(T, TP): 4 ranks with 8200 rows where 8193 may be scheduled and TP is 8."""
    numbers = V3_EXPERTS | {
        "max_num_batched_tokens": 8193,
        "data_parallel_size": 4,
        "tensor_parallel_size": 8,
        "expert_parallel_size": 32,
        "sequence_parallel_size": 8,
    }
    assert worst("moe.output_only", numbers, "0.28.0") == 4 * 8200 * 7168 * 2


def test_prefill_context_parallelism_is_outside_the_moe_rules() -> None:
    found = rule_bound(
        require("moe.triton"),
        V3_EXPERTS | {"max_num_batched_tokens": 16_384, "prefill_context_parallel_size": 2},
    )
    assert found.bytes is None
    assert "without prefill context parallelism" in found.contradiction


def test_padded_weights_count_as_the_layer_keeps_them() -> None:
    """gpt-oss: 2880 wide, kept as 3072 and 2944 by MXFP4 Marlin; 8192 tokens, 4 experts."""
    model = {"hidden_size": 2880, "moe_intermediate_size": 2880, "top_k": 4}
    step = {"max_num_batched_tokens": 8192, "dtype_size": 2}
    assert worst("moe.triton", model | step) == 540 * MIB
    live = {"moe_hidden_dim": 3072, "moe_intermediate_dim": 2944}
    assert worst("moe.triton", model | step | live) == 560 * MIB


def _bound(classes: dict[str, list[str]], size: int) -> Any:
    request = Request(
        site=1, slot=Slot(), bytes=size, arena=0, phase="profile", classes=classes
    )
    limits = V3_EXPERTS | {"max_num_batched_tokens": 8192, "data_parallel_size": 16}
    return bound_site([request], limits, file=MODULAR, function=ALLOCATE, vllm_version="0.33.0")


@pytest.mark.parametrize(
    ("experts", "site", "total"),
    [
        (["FlashInferExperts", "FusedMoEExpertsModular"], "moe.output_only", 1792),
        (["TritonExperts", "FusedMoEExpertsModular"], "moe.triton", 28_672),
        (["MyTritonExperts", "TritonExperts"], "moe.triton", 28_672),
    ],
)
def test_the_rule_is_the_one_of_the_experts_that_asked(
    experts: list[str], site: str, total: int
) -> None:
    """DeepSeek-V3 over 16 ranks; one request of 1792 MiB fits both rules, 16 times apart."""
    found = _bound({"fused_experts": experts}, 1792 * MIB)
    assert (found.known_site, found.grade, found.bytes) == (site, "proved", total * MIB)


def test_experts_that_no_rule_names_are_not_proved_by_a_size_that_fits() -> None:
    found = _bound({"fused_experts": ["NewExperts"]}, 1792 * MIB)
    assert found.grade == "observed"
    assert "no rule is for the experts NewExperts" in found.why


def test_two_kinds_of_experts_at_one_site_need_a_rule_each() -> None:
    sizes = {"FlashInferExperts": 1792 * MIB, "TritonExperts": 28_672 * MIB}
    requests = [
        Request(
            site=1,
            slot=Slot(),
            bytes=size,
            arena=0,
            phase="profile",
            classes={"fused_experts": [name]},
        )
        for name, size in sizes.items()
    ]
    limits = V3_EXPERTS | {"max_num_batched_tokens": 8192, "data_parallel_size": 16}
    found = bound_site(requests, limits, file=MODULAR, function=ALLOCATE, vllm_version="0.33.0")
    assert (found.grade, found.bytes) == ("proved", 28_672 * MIB)


STEP = {"max_num_seqs": 64, "max_num_batched_tokens": 512, "max_model_len": 448}


@pytest.mark.parametrize(
    ("more", "role", "most"),
    [
        ({}, "num_decode_tokens", 64),
        (
            {"max_cudagraph_capture_size": 128, "cudagraph_mode": "FULL"},
            "num_decode_tokens",
            128,
        ),
        (
            {"max_cudagraph_capture_size": 128, "cudagraph_mode": "FULL_AND_PIECEWISE"},
            "num_decode_tokens",
            64,
        ),
        ({"prefill_context_parallel_size": 2}, "num_reqs", 128),
        ({"prefill_context_parallel_size": 2}, "num_prefills", 128),
        ({"prefill_context_parallel_size": 2}, "num_decodes", 64),
        ({"max_encoder_len": 1500}, "seq_len", 1500),
        ({"max_encoder_len": 0}, "seq_len", 448),
        ({"max_encoder_len": 1500}, "total_seq_len", 64 * 1500),
        ({"max_cudagraph_capture_size": 1024}, "num_padded_tokens", 1024),
        ({"tensor_parallel_size": 3}, "num_padded_tokens", 513),
    ],
)
def test_a_quantity_may_reach_what_vllm_itself_reaches(
    more: dict[str, Any], role: str, most: int
) -> None:
    assert role_limits(STEP | more)[role].maximum == most
