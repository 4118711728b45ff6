"""Layers in miniature, for the slicer to read: their requests follow metadata."""

from __future__ import annotations

from typing import Any

import torch


class BenchMetadata:
    """What a scheduler's step gives: names that the slicer has roles for."""

    def __init__(self, num_decode_tokens: int, num_prefill_tokens: int) -> None:
        self.num_decode_tokens = num_decode_tokens
        self.num_prefill_tokens = num_prefill_tokens


class Experts:
    """Named in the request, as a fused MoE layer's experts are."""

    def workspace_shapes(self, rows: int) -> tuple[int, int]:
        """One row a token."""
        return (rows, 512)


class Layer:
    """A request two callers below its metadata, and one of its own numbers alone."""

    num_heads = 8
    head_size = 64

    def __init__(self, manager: Any) -> None:
        self.manager = manager
        self.fused_experts = Experts()

    def decode(self, metadata: BenchMetadata) -> Any:
        """Rows of the decodes."""
        return self.middle(metadata.num_decode_tokens)

    def prefill(self, metadata: BenchMetadata) -> Any:
        """Rows of the prefills, by another way."""
        return self.middle(metadata.num_prefill_tokens)

    def middle(self, num_rows: int) -> Any:
        """The second caller."""
        return self.rows(num_rows)

    def rows(self, num_rows: int) -> Any:
        """The request; its formula is read from both callers."""
        return self.manager.get_simultaneous(
            ((num_rows, self.num_heads, self.head_size), torch.bfloat16)
        )

    def direct(self, metadata: BenchMetadata) -> Any:
        """Rows of the decodes by one call, the only one of `flat`."""
        return self.flat(metadata.num_decode_tokens)

    def flat(self, num_rows: int) -> Any:
        """The request; its formula is read from one caller."""
        return self.manager.get_simultaneous(((num_rows, self.head_size), torch.bfloat16))

    def scratch(self, _: BenchMetadata) -> Any:
        """A request of numbers of the layer: no caller is followed."""
        return self.manager.get_simultaneous(((self.num_heads, self.head_size), torch.bfloat16))
