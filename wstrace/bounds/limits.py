"""The ranges of the scheduler quantities under one config.

Each role of `wstrace.vllm.roles` has the expression of its limit; here it is evaluated. What
the config does not give is named in `needs`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from wstrace.expr import expression
from wstrace.reserve.evaluate import numeric
from wstrace.vllm.quantities import MIXED_GRAPHS, mixed_graphs, widest_mixed_graph
from wstrace.vllm.roles import ROLES, Role, decode_width, longest, most_requests

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from wstrace.trace.records import Limit


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
    numbers |= dict(zip(MIXED_GRAPHS, mixed_graphs(limits), strict=True))
    return {name: _role_limit(name, role, numbers) for name, role in ROLES.items()}


def _role_limit(name: str, role: Role, numbers: Mapping[str, int]) -> RoleLimit:
    text = role.limit(numbers)
    parsed = expression.parse(text)
    needs = tuple(sorted(parsed.names - numbers.keys()))
    minimum = 0 if role.can_be_zero else 1
    maximum = None if needs else max(minimum, parsed.evaluate(numbers))
    return RoleLimit(name, text, minimum, maximum, role.why, needs)


def joint_limits(roles: Iterable[str], limits: Mapping[str, Limit]) -> list[str]:
    """What binds several roles at once: expressions over role and limit names, each <= 0.

    Only those whose roles are all among `roles`. They hold for one step's quantities, and
    tighten products such as requests * tokens that a box of ranges would overstate.
    """
    known = set(roles)
    numbers = numeric(limits)
    texts = _joint_texts(numbers)
    if not widest_mixed_graph(limits):
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
        f"total_seq_len - num_reqs * {longest(numbers)}",
    )


def _roles_of(text: str) -> set[str]:
    return set(expression.parse(text).names & ROLES.keys())
