"""Servers of TurboQuant: what they are started with, and prompts that share a beginning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tools.gpu.servers import TOKENS_OUT

GRAPHS: Final = ("--compilation-config", '{"cudagraph_capture_sizes":[1,2,4,8]}')


@dataclass(frozen=True)
class Turbo:
    """A server that asks as TurboQuant's continuation prefill does, and what to ask it.

    The request for a chunk of a prompt is two buffers of (1, num_kv_heads, cached tokens
    rounded up to `block`, head_size) with two bytes an element; chunks of at most `threshold`
    tokens are decoded instead.
    """

    model: str
    arguments: tuple[str, ...]
    max_model_len: int
    chunk: int
    block: int
    threshold: int
    num_kv_heads: int
    head_size: int
    short: int
    deadly: int
    middle: int
    longest_of_six: int
    longest_of_grow: int

    @property
    def longest(self) -> int:
        """The longest prompt that leaves room for an answer."""
        return self.max_model_len - TOKENS_OUT


def turbo_arguments(length: int, batched: int, *more: str) -> tuple[str, ...]:
    """The flags of a TurboQuant server."""
    return (
        *("--kv-cache-dtype", "turboquant_4bit_nc", "--max-num-seqs", "8"),
        *("--max-model-len", str(length), "--max-num-batched-tokens", str(batched)),
        *GRAPHS,
        *more,
    )


H100: Final = Turbo(
    "qwen3",
    turbo_arguments(32768, 4096),
    max_model_len=32768,
    chunk=4096,
    block=16,
    threshold=128,
    num_kv_heads=4,
    head_size=128,
    short=1000,
    deadly=9000,
    middle=20000,
    longest_of_six=6000,
    longest_of_grow=30000,
)


def prefix_of(tokens: int) -> list[int]:
    """A prompt whose beginning every longer one of these shares."""
    return [(7 + 31 * position) % 251 for position in range(tokens)]


UNCHUNKED: Final = turbo_arguments(
    16384, 16384, "--no-enable-chunked-prefill", "--enable-prefix-caching"
)
