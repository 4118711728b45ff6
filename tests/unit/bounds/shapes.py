"""One config of a known site in plain numbers, and the buffers of its largest call.

The buffers are (shape, bytes of an element), read from the source of that version by hand.
"""

from __future__ import annotations

from typing import Final, NamedTuple

Spec = tuple[tuple[int, ...], int]


class Row(NamedTuple):
    """One config of a site and the specs of its largest call."""

    site: str
    version: str
    numbers: dict[str, int]
    specs: list[Spec]


# Variants without a row: tests/matrix/differential plays vLLM's own code against their rules,
# and says where it does not.
PLAYED: Final[dict[str, tuple[str, ...]]] = {
    "dcp.flash_attention": ("0.26.0",),
    "dcp.alltoall_flash": ("0.21.0",),
    "deepseek_v4.prefill_gather": ("0.20.0",),
    "deepseek_v4.prefill_gather_rocm": ("0.24.0", "0.32.0"),
    "deepseek_v41.prefill_gather_rocm": ("0.30.0",),
    "indexer.sparse_attn": ("0.20.0",),
    "mla.prefill_aiter_fp8": ("0.30.0",),
    "mla.aiter_dcp_verify": ("0.33.0",),
    "mla.flashmla_sparse_fp8_sm100": ("0.31.0",),
    "moe.triton_or_deep_gemm": ("0.18.1", "0.24.0", "0.31.0"),
    "moe.oai_triton": ("0.18.1",),
    "moe.oai_triton_unfused": ("0.18.1",),
    "moe.rdna3": ("0.29.0",),
    "moe.naive_batched": ("0.18.1",),
    "moe.cutlass_batched": ("0.18.1", "0.30.0"),
    "moe.flashinfer_batched": ("0.18.1",),
    "moe.humming_indexed": ("0.20.0", "0.31.0"),
    "moe.humming_grouped": ("0.20.0", "0.31.0"),
    "moe.humming_indexed_quantised": ("0.20.0", "0.31.0"),
    "moe.humming_grouped_quantised": ("0.20.0", "0.31.0"),
    "moe.humming_batched": ("0.20.0", "0.31.0"),
    "moe.humming_batched_quantised": ("0.20.0", "0.31.0"),
}
# Sites without a row.
NO_ROW: Final = {
    "b12x.paged_attention": "its bytes are one number, the package's own",
    "deepseek_v4.b12x_compressed_mla": "its bytes are one number, the package's own",
    "deepseek_v4.pooled_k": "persistent: the layer keeps it, no request makes it",
    "moe.permute_scratch": "persistent: the layer keeps it, no request makes it",
    "moe.marlin_locks": "persistent: the layer keeps it, no request makes it",
}
