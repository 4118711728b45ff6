"""Which requests reach the corners of the scheduler: a small set, the same every time.

Scratch requests grow with the batch, with the tokens of a step, and with what is computed
already when a prefill goes on. So: a full batch, one prompt near max_model_len, prompts that
go on from a warm prefix, and chunks of a long prompt between the steps of decoding ones.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

FIRST_TOKEN, TOKENS = 10, 90
TAIL: Final = 64
FIXED: Final = 8
AT_ONCE: Final = 4
REACHED: Final = frozenset(
    ("num_computed_tokens", "seq_len", "max_blocks_per_req", "num_reqs", "num_decodes")
)
"""The drivers whose limit the corners of `plan` come near, each by itself."""


@dataclass(frozen=True)
class Call:
    """One completion: prompt token ids, and how many tokens to generate."""

    prompt: tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True)
class Corner:
    """Calls that reach one corner; `together`: all at once, else one after the other."""

    name: str
    calls: tuple[Call, ...]
    together: bool = False


def prompt_of(length: int, seed: int) -> tuple[int, ...]:
    """`length` ordinary token ids; another seed differs from the first token on."""
    return tuple(FIRST_TOKEN + (seed + 31 * i) % TOKENS for i in range(length))


def corners_within(max_model_len: int, max_requests: int) -> tuple[list[Corner], list[str]]:
    """The corners in the order to send them, and the names of those left out.

    At most `max_requests` calls in all: what the other corners leave is the batch.
    """
    corners = [
        Corner("decode", (_short(max_model_len, 16, 32, seed=1),)),
        Corner("long prompt", (Call(_long(max_model_len), 1),)),
        Corner("warm prefix", _warm(max_model_len)),
        Corner("resumed chunks", _resumed(max_model_len), together=True),
    ]
    batch = max(max_requests - FIXED, 0)
    kept: list[Corner] = []
    left_out = [] if batch > 1 else ["batch"]
    for corner in corners:
        fits = sum(len(c.calls) for c in kept) + len(corner.calls) <= max_requests
        if fits:
            kept.append(corner)
        else:
            left_out.append(corner.name)
    if batch > 1:
        kept.insert(1, _batch(max_model_len, batch))
    return kept, left_out


def by_drivers(drivers: Collection[str], max_model_len: int, widest: int) -> list[Corner]:
    """Further corners for what the sites seen grow with, where those of `plan` fall short.

    A driver is a scheduler quantity by its name in `wstrace.vllm.roles.ROLES`. `plan` reaches
    the longest context and the widest batch; what counts the tokens of a step, or of several
    prefills in it, wants several long prompts at once, which then decode side by side. One of
    another name may want them too.
    """
    if not set(drivers) - REACHED:
        return []
    number = max(1, min(widest, AT_ONCE))
    half = max(1, max_model_len // 2)
    out = max(1, min(8, max_model_len - half))
    calls = (Call(prompt_of(half, seed=40 + i), out) for i in range(number))
    return [Corner("prompts at once", tuple(calls), together=True)]


def _short(max_model_len: int, length: int, max_tokens: int, seed: int) -> Call:
    """A short call that fits even a tiny max_model_len."""
    length = max(1, min(length, max_model_len // 2))
    return Call(prompt_of(length, seed), max(1, min(max_tokens, max_model_len - length)))


def _long(max_model_len: int) -> tuple[int, ...]:
    return prompt_of(max(1, max_model_len - 1), seed=2)


def _warm(max_model_len: int) -> tuple[Call, ...]:
    """The long prompt again, and its prefix with another end: both go on from the cache."""
    known = _long(max_model_len)
    tail = min(TAIL, len(known) // 2)
    return Call(known, 1), Call(known[: len(known) - tail] + prompt_of(tail, seed=3), 1)


def _resumed(max_model_len: int) -> tuple[Call, ...]:
    """A prompt of half the length in chunks, while three others decode."""
    decoding = [_short(max_model_len, 16, 64, seed) for seed in (4, 5, 6)]
    return (*decoding, Call(prompt_of(max(1, max_model_len // 2), seed=7), 1))


def _batch(max_model_len: int, number: int) -> Corner:
    calls = tuple(_short(max_model_len, 32, 16, seed=8 + i) for i in range(number))
    return Corner("batch", calls, together=True)
