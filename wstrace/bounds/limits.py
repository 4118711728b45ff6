"""How large each scheduler quantity can get, from the config.

Every role of `wstrace.vllm.roles` has a limit expression over the names of a worker's
limits. A number that is absent drops its term where vLLM's default makes the term neutral
(no draft tokens, one rank), and is named in `needs` where it does not. docs/bounds.md says
where each rule comes from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from wstrace.expr import expression
from wstrace.reserve.evaluate import numeric
from wstrace.vllm.quantities import mixed_graph_tokens, padded_decode_rows
from wstrace.vllm.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from wstrace.trace.records import Limit

_CAN_BE_ZERO: Final = frozenset(
    ("num_computed_tokens", "num_decodes", "num_decode_tokens", "num_decode_rows")
) | {"num_prefills", "num_prefill_tokens"}
_SOURCES: Final[Mapping[str, str]] = {
    "num_computed_tokens": "the scheduler keeps one position free for the next token",
    "seq_len": "the scheduler and the drafter stop at the model length",
    "query_len": "one request's share of the step's token budget, within its length",
    "num_scheduled_tokens": "the scheduler's token budget",
    "num_padded_tokens": "the token budget or the widest graph, rounded up to the TP ranks",
    "num_reqs": "the scheduler's request budget",
    "num_decodes": "every running request may decode",
    "num_decode_tokens": "a decoding request verifies its drafts and one more token; a full"
    " graph of a mixed step counts its padding",
    "num_decode_rows": "one request with all its drafts pads every other to its length",
    "num_prefills": "every running request may prefill",
    "num_prefill_tokens": "the scheduler's token budget",
    "total_seq_len": "every running request at the model length",
    "max_blocks_per_req": "the block table's width, aligned for 128-token tiles",
}


@dataclass(frozen=True)
class RoleLimit:
    """The range of one scheduler quantity: `minimum` to the value of `expression`.

    `maximum` is None while `needs` names limits that the config does not give.
    """

    role: str
    expression: str
    minimum: int
    maximum: int | None
    source: str
    needs: tuple[str, ...] = ()


def role_limits(limits: Mapping[str, Limit]) -> dict[str, RoleLimit]:
    """The range of every role under `limits`."""
    numbers = numeric(limits)
    numbers["mixed_graph_tokens"] = mixed_graph_tokens(limits)
    texts = _texts(numbers)
    return {role: _role_limit(role, text, numbers) for role, text in texts.items()}


def _texts(numbers: Mapping[str, int]) -> dict[str, str]:
    requests = most_requests(numbers)
    return {
        "num_computed_tokens": "max_model_len - 1",
        "seq_len": _longest(numbers),
        "query_len": "min(max_num_batched_tokens, max_model_len)",
        "num_scheduled_tokens": "max_num_batched_tokens",
        "num_padded_tokens": _padded(numbers),
        "num_reqs": requests,
        "num_decodes": "max_num_seqs",
        "num_decode_tokens": _decode_tokens(numbers),
        "num_decode_rows": _decode_rows(numbers),
        "num_prefills": requests,
        "num_prefill_tokens": "max_num_batched_tokens",
        "total_seq_len": f"{requests} * {_longest(numbers)}",
        "max_blocks_per_req": _table_width(numbers),
    }


def most_requests(numbers: Mapping[str, int]) -> str:
    """Requests of a step; under PCP a rank has two chunks of each prefill, each a row of its
    own (0.33.0: PCPManager._iter_rank_chunks)."""
    several = _several("prefill_context_parallel_size", numbers)
    return "2 * max_num_seqs" if several else "max_num_seqs"


def _longest(numbers: Mapping[str, int]) -> str:
    """Cross attention sees the encoder's sequence: Whisper's 1500 against 448 decoded."""
    if numbers.get("max_encoder_len"):
        return "max(max_model_len, max_encoder_len)"
    return "max_model_len"


def _decode_tokens(numbers: Mapping[str, int]) -> str:
    width = decode_width(numbers)
    tokens = "max_num_seqs"
    if width != "1":
        tokens = f"min(max_num_batched_tokens, max_num_seqs * {width})"
    return f"max({tokens}, mixed_graph_tokens)" if numbers["mixed_graph_tokens"] else tokens


def drafts_width(numbers: Mapping[str, int]) -> str:
    """Tokens of a request that verifies its drafts; a parallel drafter of the V1 runner may
    append as many mask slots as there are drafts."""
    if "num_speculative_tokens" not in numbers:
        return "1"
    times = "2 * " if numbers.get("parallel_drafting") else ""
    return f"(1 + {times}num_speculative_tokens)"


def decode_width(numbers: Mapping[str, int]) -> str:
    """Most tokens that a request may have and still count as decoding.

    `reorder_batch_threshold` is above 1 in MLA backends that decode short prefills (128 in
    FlashMLA, 512 in FlashAttention MLA, up to 1024 in FlashInfer's sparse MLA). Of an MLA
    model whose threshold was not recorded every token may count as decoding.
    """
    drafts = drafts_width(numbers)
    threshold = numbers.get("reorder_batch_threshold")
    if threshold is None and "kv_lora_rank" in numbers:
        return "max_num_batched_tokens"
    if threshold is not None and threshold > 1:
        return f"max({drafts}, reorder_batch_threshold)"
    return drafts


def _decode_rows(numbers: Mapping[str, int]) -> str:
    """Padding is the sparse indexers', which take only verified drafts for decodes."""
    width = drafts_width(numbers)
    return "max_num_seqs" if width == "1" else padded_decode_rows(width)


def _padded(numbers: Mapping[str, int]) -> str:
    widest = "max_num_batched_tokens"
    if "max_cudagraph_capture_size" in numbers:
        widest = f"max({widest}, max_cudagraph_capture_size)"
    if _several("tensor_parallel_size", numbers):
        return f"round_up({widest}, tensor_parallel_size)"
    return widest


def _table_width(numbers: Mapping[str, int]) -> str:
    per_block = ["block_size"]
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        per_block += [name] if _several(name, numbers) else []
    width = f"round_up(ceil_div(max_model_len, {' * '.join(per_block)}), 128)"
    if "num_speculative_tokens" in numbers:
        return f"max({width}, 1 + num_speculative_tokens)"
    return width


def _several(name: str, numbers: Mapping[str, int]) -> bool:
    """More than one rank: group sizes are part of the layout and never change later."""
    return numbers.get(name, 1) > 1


def _role_limit(role: str, text: str, numbers: Mapping[str, int]) -> RoleLimit:
    parsed = expression.parse(text)
    needs = tuple(sorted(parsed.names - numbers.keys()))
    minimum = 0 if role in _CAN_BE_ZERO else 1
    maximum = None if needs else max(minimum, parsed.evaluate(numbers))
    return RoleLimit(role, text, minimum, maximum, _SOURCES[role], needs)


def joint_limits(roles: Iterable[str], limits: Mapping[str, Limit]) -> list[str]:
    """What binds several roles at once: expressions over role and limit names, each <= 0.

    Only those whose roles are all among `roles`. They hold for one step's quantities, and
    tighten products such as requests * tokens that a box of ranges would overstate.
    """
    known = set(roles)
    numbers = numeric(limits)
    texts = _joint_texts(numbers)
    if not mixed_graph_tokens(limits):
        texts += _unpadded_texts(decode_width(numbers))
    if not numbers.get("max_encoder_len"):
        texts += _SELF_ATTENTION
    return [text for text in texts if _roles_of(text) <= known]


def _unpadded_texts(width: str) -> tuple[str, ...]:
    return (
        "num_decode_tokens + num_prefill_tokens - max_num_batched_tokens",
        f"num_decode_tokens - num_decodes * {width}",
    )


_SELF_ATTENTION: Final = ("num_computed_tokens + 1 - seq_len", "query_len - seq_len")
"""In cross attention the sequence is the encoder's."""


def _joint_texts(numbers: Mapping[str, int]) -> tuple[str, ...]:
    return (
        "num_decodes - num_decode_tokens",
        "num_prefills - num_prefill_tokens",
        f"num_decodes + num_prefills - {most_requests(numbers)}",
        "num_reqs - num_scheduled_tokens",
        "num_computed_tokens + query_len - max_model_len",
        "query_len - num_scheduled_tokens",
        f"total_seq_len - num_reqs * {_longest(numbers)}",
    )


def _roles_of(text: str) -> set[str]:
    return set(expression.parse(text).names & ROLES.keys())
