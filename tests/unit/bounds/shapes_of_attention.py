"""The largest calls of attention, its indexers and what stands in for it: see shapes.py."""

from __future__ import annotations

from tests.unit.bounds.shapes import Row

MLA = {"num_attention_heads": 12, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
DRAFTED = {
    **MLA,
    "max_num_seqs": 9,
    "max_model_len": 1_000_000,
    "num_sms": 132,
    "num_speculative_tokens": 2,
    "decode_context_parallel_size": 2,
}
V4 = {
    "max_model_len": 30_001,
    "max_num_batched_tokens": 2048,
    "sliding_window": 128,
    "head_size": 512,
    "compress_ratio": 4,
    "index_topk": 512,
}
KDA = {
    "max_num_batched_tokens": 300,
    "max_num_seqs": 7,
    "linear_num_heads": 3,
    "linear_head_dim": 128,
    "flashkda_workspace_bytes": 1001,
}
WIDE = 2_000_000 // 128

ROWS = [
    Row(
        "ultraquant.continuation_prefill",
        "0.33.0",
        {"max_model_len": 1001, "num_kv_heads": 3, "head_size": 72, "block_size": 48},
        [((1, 3, 1008, 72), 2), ((1, 3, 1008, 72), 2)],
    ),
    Row(
        "ultraquant.decode",
        "0.33.0",
        {"max_num_seqs": 5, "num_attention_heads": 7, "head_size": 72},
        [((5, 7, 32, 73), 4), ((5, 7, 72), 2), ((5, 7), 4)],
    ),
    Row("mla.prefill_flashinfer", "0.33.0", {}, [((394 * 1024 * 1024,), 1)]),
    Row(
        "mla.prefill_aiter_fp8",
        "0.26.0",
        {
            "max_partial_tiles": 30,
            "num_attention_heads": 8,
            "v_head_dim": 128,
            "max_num_batched_tokens": 1000,
        },
        [((30 * 256, 8, 128), 4), ((30 * 256, 8), 4), ((1000, 8), 4)],
    ),
    Row(
        "mla.prefill_aiter_fp8",
        "0.33.0",
        {
            "max_num_batched_tokens": 1000,
            "max_num_seqs": 5,
            "num_sms": 304,
            "num_attention_heads": 12,
            "v_head_dim": 128,
        },
        [
            ((312 * 256, 16, 128), 4),
            ((312 * 256, 16), 4),
            ((1000, 16), 4),
            ((1000, 16, 128), 2),
        ],
    ),
    Row(
        "mla.triton_decode",
        "0.26.0",
        {**MLA, "max_num_seqs": 9, "max_model_len": 10_000, "num_sms": 132},
        [((9, 12, 32, 513), 4)],
    ),
    Row(
        "mla.triton_decode",
        "0.33.0",
        DRAFTED,
        [((27, 24, 264, 513), 4)],
    ),
    Row(
        "mla.triton_decode",
        "0.33.0",
        {**DRAFTED, "parallel_drafting": 1},
        [((45, 24, 264, 513), 4)],
    ),
    Row(
        "mla.tokenspeed_decode",
        "0.33.0",
        {**MLA, "num_sms": 148, "max_num_seqs": 64, "max_num_batched_tokens": 2048},
        [((148 * 12 * 8 * 513 * 4,), 1)],
    ),
    Row(
        "mla.tokenspeed_decode",
        "0.33.0",
        {
            **MLA,
            "num_sms": 148,
            "max_num_seqs": 64,
            "max_num_batched_tokens": 2048,
            "min_split_kv": 4,
            "max_cudagraph_capture_size": 0,
        },
        [((64 * 128 * 4 * 513 * 4,), 1)],
    ),
    Row(  # a graph wider than the decodes
        "mla.tokenspeed_decode",
        "0.33.0",
        {
            **MLA,
            "num_sms": 148,
            "max_num_seqs": 64,
            "max_num_batched_tokens": 2048,
            "min_split_kv": 4,
            "max_cudagraph_capture_size": 128,
        },
        [((128 * 128 * 4 * 513 * 4,), 1)],
    ),
    Row(
        "mla.flashmla_sparse_fp8",
        "0.13.0",
        {**MLA, "max_model_len": 1001},
        [((5005, 576), 2)],
    ),
    Row(
        "mla.flashmla_sparse_fp8",
        "0.33.0",
        {
            **MLA,
            "max_model_len": 300_000,
            "max_num_batched_tokens": 1000,
        },
        [
            ((1000, 12, 576), 2),
            ((600_000, 576), 2),
            ((1000, 64, 576), 2),
            ((1000, 64, 512), 2),
            ((1000, 12, 512), 2),
        ],
    ),
    # On SM100 as on other GPUs but from 0.29.0 to 0.31.0. A run of vLLM names the first of
    # two equal rules, never these.
    Row(
        "mla.flashmla_sparse_fp8_sm100",
        "0.13.0",
        {**MLA, "max_model_len": 1001},
        [((5005, 576), 2)],
    ),
    Row(
        "mla.flashmla_sparse_fp8_sm100",
        "0.22.1",
        {**MLA, "max_model_len": 1001, "max_num_batched_tokens": 100},
        [((100, 12, 576), 2), ((5005, 576), 2)],
    ),
    Row(
        "mla.flashmla_sparse_fp8_sm100",
        "0.32.0",
        {**MLA, "max_model_len": 300_000, "max_num_batched_tokens": 1000},
        [
            ((1000, 12, 576), 2),
            ((600_000, 576), 2),
            ((1000, 64, 576), 2),
            ((1000, 64, 512), 2),
            ((1000, 12, 512), 2),
        ],
    ),
    Row(
        "mla.flashmla_sparse_bf16_sm100",
        "0.22.1",
        {**MLA, "max_num_batched_tokens": 100},
        [((100, 12, 576), 2)],
    ),
    Row(  # heads padded for the prefill kernel: to 64 from 0.29.0, on SM100 to 128 up to 0.31.0
        "mla.flashmla_sparse_bf16",
        "0.30.0",
        {**MLA, "max_num_batched_tokens": 100},
        [((100, 64, 576), 2)],
    ),
    Row(
        "mla.flashmla_sparse_bf16_sm100",
        "0.31.0",
        {**MLA, "max_num_batched_tokens": 100},
        [((100, 128, 576), 2)],
    ),
    Row(
        "mla.flashmla_sparse_bf16_sm100",
        "0.32.0",
        {**MLA, "max_num_batched_tokens": 100},
        [((100, 64, 576), 2)],
    ),
    Row(
        "mla.flashmla_sparse_bf16",
        "0.33.0",
        {**MLA, "max_num_batched_tokens": 1000},
        [((1000, 64, 576), 2)],
    ),
    Row(
        "indexer.sparse_attn",
        "0.16.0",
        {"max_model_len": 1001, "index_head_dim": 128},
        [((40_040, 128), 1), ((40_040, 4), 1)],
    ),
    Row(
        "indexer.sparse_attn",
        "0.33.0",
        {"max_model_len": 1001, "index_head_dim": 128, "compress_ratio": 4},
        [((10_010, 128), 1), ((10_010, 4), 1), ((1024 * 1024,), 1)],
    ),
    Row(
        "indexer.sparse_attn_mxfp4",
        "0.33.0",
        {"max_model_len": 1001, "index_head_dim": 128, "compress_ratio": 4},
        [((10_010, 64), 1), ((10_010, 4), 1), ((1024 * 1024,), 1)],
    ),
    Row(
        "indexer.kpool",
        "0.32.0",
        {"max_model_len": 1001, "index_head_dim": 128, "index_kpool": 16},
        [((2502, 128), 1), ((2502, 4), 1), ((1024 * 1024,), 1)],
    ),
    Row(
        "indexer.rocm_aiter",
        "0.33.0",
        {
            "max_model_len": 1001,
            "index_head_dim": 128,
            "max_num_batched_tokens": 8192,
            "max_num_seqs": 64,
            "num_speculative_tokens": 31,
        },
        [((2048, 1001), 4)],
    ),
    Row(
        "indexer.rocm_paged_logits_stage1",
        "0.33.0",
        {
            "max_model_len": 1001,
            "index_n_heads": 3,
            "max_num_batched_tokens": 8192,
            "max_num_seqs": 64,
        },
        [((3, 64, 1001), 4)],
    ),
    Row(
        "indexer.rocm_paged_logits",
        "0.33.0",
        {
            "max_model_len": 1001,
            "compress_ratio": 4,
            "max_num_batched_tokens": 8192,
            "max_num_seqs": 64,
        },
        [((64, 250), 4)],
    ),
    Row(
        "indexer.rocm_mxfp4",
        "0.33.0",
        {
            "max_model_len": 1001,
            "max_num_batched_tokens": 8192,
            "max_num_seqs": 64,
            "candidate_block_size": 32,
            "candidate_topk_blocks": 8,
        },
        [((64, 1001), 4), ((64, 32), 4)],
    ),
    Row("deepseek_v4.prefill_gather", "0.24.0", V4, [((4, 7501 + 128 + 2048, 512), 2)]),
    Row(
        "deepseek_v4.prefill_gather",
        "0.33.0",
        {**V4, "max_image_tokens": 100},
        [((4, 7501 + 128 + 2048, 512), 2), ((2048, 768), 4), ((2048,), 4)],
    ),
    Row(
        "deepseek_v4.prefill_gather",
        "0.33.0",
        {**V4, "max_model_len": 2_000_000, "max_num_batched_tokens": 65_536},
        [((4, WIDE + 128 + 65_536, 512), 2), ((65_536, 15_744 + 128), 4), ((65_536,), 4)],
    ),
    Row(
        "deepseek_v41.prefill_gather",
        "0.33.0",
        {**V4, "compress_ratio": 1},
        [((4, 30_001 + 128 + 2048, 512), 2), ((2048, 640), 4), ((2048,), 4)],
    ),
    Row(
        "deepseek_v41.prefill_gather_rocm",
        "0.33.0",
        {**V4, "num_attention_heads": 16, "compress_ratio": 2},
        [((4, 15_001 + 128 + 2048, 512), 2), ((2048, 16, 512), 2)],
    ),
    Row(
        "dcp.flash_attention",
        "0.21.0",
        {
            "max_num_batched_tokens": 999,
            "num_attention_heads": 5,
            "decode_context_parallel_size": 2,
            "head_size": 72,
        },
        [((999, 10, 72), 2)],
    ),
    Row(
        "dcp.alltoall_mla",
        "0.21.0",
        {
            "max_num_seqs": 9,
            "num_speculative_tokens": 2,
            "num_attention_heads": 5,
            "decode_context_parallel_size": 4,
            "kv_lora_rank": 512,
            "max_num_batched_tokens": 100,
            "reorder_batch_threshold": 1,
        },
        [((4, 27, 5, 514), 2), ((4, 27, 5, 514), 2)],
    ),
    # FlashAttention MLA, the default: 16 prompts of 512 tokens are all decodes.
    Row(
        "dcp.alltoall_mla",
        "0.21.0",
        {
            "max_num_seqs": 16,
            "num_attention_heads": 16,
            "decode_context_parallel_size": 8,
            "kv_lora_rank": 512,
            "max_num_batched_tokens": 8192,
        },
        [((8, 8192, 16, 514), 2), ((8, 8192, 16, 514), 2)],
    ),
    Row(
        "kda.kimi_k3_flashkda",
        "0.28.0",
        KDA,
        [((1, 300, 3, 128), 2), ((7, 3, 128, 128), 4), ((1001,), 1)],
    ),
    Row(
        "kda.kimi_k3_flashkda",
        "0.33.0",
        KDA,
        [((1, 300, 3, 128), 2), ((7, 3, 128, 128), 4), ((7, 3, 128, 128), 4), ((1001,), 1)],
    ),
    Row(
        "gdn.qwen_checkpoints",
        "0.33.0",
        {
            "max_num_batched_tokens": 1000,
            "mamba_checkpoint_grid": 64,
            "linear_num_value_heads": 5,
            "linear_value_head_dim": 96,
            "linear_key_head_dim": 128,
        },
        [((16, 5, 96, 128), 4)],
    ),
    Row(
        "octave.rocm",
        "0.33.0",
        {
            "max_cudagraph_capture_size": 8,
            "max_num_batched_tokens": 4096,
            "num_attention_heads": 6,
        },
        [((4096, 6, 1, 258), 4)],
    ),
    Row(
        "octave.rocm",
        "0.33.0",
        {
            "max_cudagraph_capture_size": 512,
            "max_num_batched_tokens": 4096,
            "num_attention_heads": 6,
        },
        [((512, 6, 32, 258), 4)],
    ),
    Row(
        "octave.qwen4_qsa",
        "0.33.0",
        {
            "max_cudagraph_capture_size": 8,
            "max_num_batched_tokens": 4096,
            "num_attention_heads": 6,
            "head_size": 256,
        },
        [((8192 * 6 * 258,), 4)],
    ),
    # 40 * max_model_len tokens of prefill; 1 MiB is RADIX_TOPK_WORKSPACE_SIZE.
    Row(
        "indexer.sparse_attn_mxfp4",
        "0.20.2",
        {"max_model_len": 3001, "compress_ratio": 4, "index_head_dim": 160},
        [((30_010, 80), 1), ((30_010, 5), 1), ((1 << 20,), 1)],
    ),
    Row(
        "indexer.sparse_mqa",
        "0.32.0",
        {"max_model_len": 3001, "compress_ratio": 4, "index_head_dim": 160},
        [((30_010, 80), 1), ((30_010, 5), 1)],
    ),
    Row(  # 8 * factor tokens
        "indexer.sparse_mqa",
        "0.33.0",
        {
            "max_model_len": 3001,
            "compress_ratio": 4,
            "index_head_dim": 160,
            "sparse_mla_prefill_workspace_factor": 2,
        },
        [((12_004, 80), 1), ((12_004, 5), 1)],
    ),
    Row("indexer.topk", "0.30.0", {}, [((1 << 20,), 1)]),
    Row(
        "indexer.kpool",
        "0.33.0",
        {
            "max_model_len": 3001,
            "index_kpool": 4,
            "index_head_dim": 130,
            "sparse_mla_prefill_workspace_factor": 2,
        },
        [((12_004, 130), 1), ((12_004, 4), 1), ((1 << 20,), 1)],
    ),
    Row(  # the logits of 300 requests that decode three tokens: the larger call
        "indexer.rocm_aiter",
        "0.30.0",
        {
            "max_model_len": 3001,
            "compress_ratio": 1,
            "index_head_dim": 8,
            "max_num_batched_tokens": 1000,
            "max_num_seqs": 300,
            "num_speculative_tokens": 2,
        },
        [((900, 3001), 4)],
    ),
    Row(
        "mla.flashmla_sparse_bf16",
        "0.18.1",
        {"max_num_batched_tokens": 77, **MLA},
        [((77, 12, 576), 2)],
    ),
    Row(
        "mla.aiter_sparse_query",
        "0.24.0",
        {"max_num_batched_tokens": 77, **MLA},
        [((77, 12, 576), 2)],
    ),
    Row("kda.kimi_k3_flashinfer", "0.30.0", KDA, [((1, 300, 3, 128), 2)]),
    Row(
        "kda.glm5next_flashkda",
        "0.32.0",
        {**KDA, "ssm_state_size": 4},
        [((7, 3, 128, 128), 4), ((7, 3, 128, 128), 4), ((1001,), 1), ((1, 300, 3, 128), 2)],
    ),
    Row(
        "kda.kimi_k3_dspark",
        "0.28.0",
        {"num_draft_layers": 3, "max_num_batched_tokens": 333},
        [((999,), 8)],
    ),
    Row(
        "turboquant.reservation",
        "0.24.0",
        {"num_kv_heads": 3, "max_model_len": 1000, "block_size": 16, "head_size": 72},
        [((1, 3, 1008, 72), 2), ((1, 3, 1008, 72), 2)],
    ),
    Row(
        "turboquant.reservation_decode",
        "0.24.0",
        {
            "max_num_seqs": 9,
            "num_attention_heads": 5,
            "tq_max_kv_splits": 32,
            "head_size": 72,
        },
        [((9, 5, 32, 73), 4), ((9, 5, 72), 2), ((9, 5), 4)],
    ),
    Row(
        "dots3_note.sliding_mqa",
        "0.33.0",
        {"max_num_seqs": 9, "sliding_window": 127, "num_speculative_tokens": 3, **MLA},
        [((9, 136, 576), 2), ((9, 136), 1)],
    ),
]
