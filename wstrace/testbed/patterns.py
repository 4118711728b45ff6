"""Scratch requests in the patterns of vLLM's attention layers, against the real manager.

Each class is one layer's share: made once a layer, of its attention implementation (`impl`:
num_heads, head_size, ...), asked at every forward pass, with `query` of (num_tokens, num_heads,
head_size), maybe padded, and `attn_metadata` None in the profile run. Sizes follow the sources
named in the docstrings; the code is the testbed's own. All but `Clean` ask for less in warm-up
than in serving.
"""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from vllm.v1.worker.workspace import current_workspace_manager

# TurboQuant's is 128 (0.20.2 to 0.33.0): less here, so that short chunks reach the path too.
CONTINUATION_DECODE_THRESHOLD: Final = 32
# vLLM 0.20.2 to 0.33.0: the default of attention_config.tq_max_kv_splits_for_cuda_graph.
NUM_KV_SPLITS: Final = 32


class Continuation:
    """TurboQuant's `_continuation_prefill`: K and V of the cached part of a later chunk.

    Two buffers of (1, num_kv_heads, round_up(num_computed_tokens, block_size), head_size)
    float16, asked only when a chunk of more than `CONTINUATION_DECODE_THRESHOLD` tokens
    continues a request; so never in the profile run, nor by a decode batch.
    """

    def __init__(self, impl: Any, vllm_config: Any) -> None:
        self.num_kv_heads = impl.num_kv_heads
        self.head_size = impl.head_size
        self.block_size = vllm_config.cache_config.block_size

    def forward(self, query: torch.Tensor, attn_metadata: Any) -> None:
        if attn_metadata is not None:
            self._prefill_attention(query, attn_metadata)

    def _prefill_attention(self, query: torch.Tensor, attn_metadata: Any) -> None:
        query_start_loc = attn_metadata.query_start_loc.tolist()
        seq_lens = attn_metadata.seq_lens.tolist()
        for i in range(len(seq_lens)):
            q_start = query_start_loc[i]
            q_end = query_start_loc[i + 1]
            q_len = q_end - q_start
            seq_len = seq_lens[i]
            cached_len = seq_len - q_len
            if cached_len > 0 and q_len > CONTINUATION_DECODE_THRESHOLD:
                self._continuation_prefill(query[q_start:q_end], cached_len)

    def _continuation_prefill(self, query: torch.Tensor, cached_len: int) -> None:
        Hk = self.num_kv_heads  # noqa: N806 (vLLM's names)
        D = self.head_size  # noqa: N806
        alloc_len = math.ceil(cached_len / self.block_size) * self.block_size
        buf_shape = (1, Hk, alloc_len, D)
        k_buf, v_buf = current_workspace_manager().get_simultaneous(
            (buf_shape, torch.float16),
            (buf_shape, torch.float16),
        )
        k_buf[:, :, :cached_len, :].zero_()
        v_buf[:, :, :cached_len, :].zero_()


class Clean(Continuation):
    """`Continuation` as it should be: the profile run reserves its worst case."""

    def __init__(self, impl: Any, vllm_config: Any) -> None:
        super().__init__(impl, vllm_config)
        self.max_model_len = vllm_config.model_config.max_model_len

    def forward(self, query: torch.Tensor, attn_metadata: Any) -> None:
        if attn_metadata is None:
            self._reserve_workspace()
        super().forward(query, attn_metadata)

    def _reserve_workspace(self) -> None:
        alloc_len = math.ceil((self.max_model_len - 1) / self.block_size) * self.block_size
        buf_shape = (1, self.num_kv_heads, alloc_len, self.head_size)
        current_workspace_manager().get_simultaneous(
            (buf_shape, torch.float16),
            (buf_shape, torch.float16),
        )


class PerToken:
    """FlashAttention's DCP gather: (num_tokens, hidden_size) bfloat16.

    The profile run sees a decode batch only (max_num_seqs tokens), as FULL decode graphs
    do; the first prefill that is larger escapes.
    """

    def __init__(self, impl: Any, vllm_config: Any) -> None:
        self.hidden_size = vllm_config.model_config.get_hidden_size()
        self.max_num_seqs = vllm_config.scheduler_config.max_num_seqs

    def forward(self, query: torch.Tensor, attn_metadata: Any) -> None:
        if attn_metadata is None:
            self._gather(self.max_num_seqs)
        else:
            self._gather(attn_metadata.num_actual_tokens)

    def _gather(self, num_tokens: int) -> None:
        (gathered,) = current_workspace_manager().get_simultaneous(
            ((num_tokens, self.hidden_size), torch.bfloat16),
        )
        gathered.zero_()


class DecodeScratch:
    """TurboQuant's `_decode_attention`: partial outputs, output and log-sum-exp.

    (B, num_heads, splits, head_size + 1) float32, (B, num_heads, head_size) float16 and
    (B, num_heads) float32 for a batch of B decoding requests. Warm-up runs one such batch
    (`WSTRACE_TESTBED_WARM_UP_DECODES` requests), as graph capture does on a GPU.
    """

    def __init__(self, impl: Any, vllm_config: Any) -> None:
        self.num_heads = impl.num_heads
        self.head_size = impl.head_size
        self.num_kv_splits = NUM_KV_SPLITS

    def forward(self, query: torch.Tensor, attn_metadata: Any) -> None:
        if attn_metadata is not None and attn_metadata.max_query_len == 1:
            self._decode_attention(attn_metadata)

    def _decode_attention(self, attn_metadata: Any) -> None:
        B = attn_metadata.seq_lens.shape[0]  # noqa: N806
        Hq = self.num_heads  # noqa: N806
        D = self.head_size  # noqa: N806
        mid_o, output, lse = current_workspace_manager().get_simultaneous(
            ((B, Hq, self.num_kv_splits, D + 1), torch.float32),
            ((B, Hq, D), torch.float16),
            ((B, Hq), torch.float32),
        )
        for scratch in (mid_o, output, lse):
            scratch.zero_()


class Constant:
    """FlashInfer's prefill workspace: a fixed size, first asked by the first real prefill."""

    def __init__(self, impl: Any, vllm_config: Any) -> None:
        from wstrace.testbed.worker import active_settings

        self.workspace_bytes = active_settings().constant_bytes

    def forward(self, query: torch.Tensor, attn_metadata: Any) -> None:
        if attn_metadata is not None and attn_metadata.max_query_len > 1:
            self._get_workspace_buffer()

    def _get_workspace_buffer(self) -> torch.Tensor:
        (workspace,) = current_workspace_manager().get_simultaneous(
            ((self.workspace_bytes,), torch.uint8),
        )
        return workspace


class Persistent:
    """A keyed resource (`get_persistent_resource`, from 0.32) first asked by a real prefill."""

    def __init__(self, impl: Any, vllm_config: Any) -> None:
        self.num_heads = impl.num_heads

    def forward(self, query: torch.Tensor, attn_metadata: Any) -> None:
        if attn_metadata is not None and attn_metadata.max_query_len > 1:
            self._semaphores().zero_()

    def _semaphores(self) -> torch.Tensor:
        key = ("wstrace_testbed_semaphores", self.num_heads)
        resource: torch.Tensor = current_workspace_manager().get_persistent_resource(
            key, lambda: torch.zeros(self.num_heads, dtype=torch.int32)
        )
        return resource
