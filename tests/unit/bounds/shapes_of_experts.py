"""The largest calls of expert layers, shape by shape: see shapes.py."""

from __future__ import annotations

from tests.unit.bounds.shapes import Row

MOE = {
    "max_num_batched_tokens": 1000,
    "top_k": 6,
    "num_experts": 10,
    "moe_intermediate_size": 96,
    "hidden_size": 200,
}
DEEP_GEMM_ROWS = -(-(1000 * 6 + 10 * 127) // 128) * 128

ROWS = [
    Row("moe.triton", "0.26.0", MOE, [((1000, 6, 200), 2), ((1000, 6, 200), 2)]),
    Row(
        "moe.triton",
        "0.33.0",
        {**MOE, "moe_intermediate_size": 150, "data_parallel_size": 4},
        [((4000, 6, 200), 2), ((4000, 6, 300), 2)],
    ),
    Row(
        "moe.triton",
        "0.33.0",
        {**MOE, "data_parallel_size": 2, "sequence_parallel_size": 3},
        [((2004, 6, 200), 2), ((2004, 6, 200), 2)],
    ),
    Row(
        "moe.triton",
        "0.13.0",
        {**MOE, "moe_chunk_size": 600},
        [((600, 6, 200), 2), ((600, 6, 200), 2), ((1000, 200), 2)],
    ),
    Row(
        "moe.deep_gemm",
        "0.21.0",
        MOE,
        [((DEEP_GEMM_ROWS, 200), 2), ((DEEP_GEMM_ROWS, 200), 2)],
    ),
    Row(
        "moe.deep_gemm",
        "0.26.0",
        {**MOE, "max_num_batched_tokens": 1},
        [((768, 200), 2), ((768, 200), 2)],
    ),
    Row(
        "moe.deep_gemm",
        "0.33.0",
        MOE,
        [((DEEP_GEMM_ROWS, 100), 2), ((DEEP_GEMM_ROWS, 200), 2)],
    ),
    Row(
        "moe.deep_gemm_routed",
        "0.26.0",
        {**MOE, "max_num_batched_tokens": 300, "top_k": 2, "num_experts": 3},
        [((128 * (3 + 597 // 128), 200), 2), ((128 * (3 + 597 // 128), 200), 2)],
    ),
    Row(
        "moe.batched_deep_gemm",
        "0.33.0",
        {
            "num_experts": 16,
            "expert_parallel_size": 4,
            "moe_max_num_tokens": 32,
            "num_dispatchers": 4,
            "moe_intermediate_size": 96,
            "hidden_size": 200,
        },
        [((4, 128, 200), 2), ((4, 128, 96), 2)],
    ),
    Row(
        "moe.batched_deep_gemm",
        "0.33.0",
        {
            "num_experts": 16,
            "num_redundant_experts": 4,
            "expert_parallel_size": 4,
            "moe_max_num_tokens": 32,
            "num_dispatchers": 4,
            "moe_intermediate_size": 96,
            "hidden_size": 200,
        },
        [((5, 128, 200), 2), ((5, 128, 96), 2)],
    ),
    Row("moe.cutlass_fp4", "0.33.0", MOE, [((6000, 384), 2), ((6000, 192), 2)]),
    Row("moe.output_only", "0.33.0", MOE, [((1000, 200), 2)]),
    Row(
        "moe.triton",
        "0.13.0",
        {**MOE, "data_parallel_size": 2, "expert_parallel_size": 2, "moe_chunk_size": 4000},
        [((4000, 6, 200), 2), ((4000, 6, 200), 2), ((4000, 200), 2)],
    ),
]
