"""A rule is held against each buffer of a request, not against their total."""

from __future__ import annotations

import pytest

from wstrace.bounds.bound import Bound
from wstrace.bounds.buffers import same_buffers
from wstrace.bounds.by_rule import by_rule
from wstrace.bounds.evidence import Site
from wstrace.expr.expression import parse
from wstrace.trace.records import Limit, Request, Slot, Spec

MIB = 1 << 20


def request(*sizes: int) -> Request:
    specs = [Spec([size], "torch.uint8", size) for size in sizes]
    total = sum(-(-size // 256) * 256 for size in sizes)
    return Request(site=1, slot=Slot(), bytes=total, arena=0, phase="serving", specs=specs)


@pytest.mark.parametrize(
    ("formula", "values", "sizes", "same"),
    [
        ("round256(n * 4) + round256(n)", {"n": 100}, (100, 400), True),
        ("round256(n * 4) + round256(n)", {"n": 100}, (384, 384), False),
        ("2 * round256(n)", {"n": 300}, (300, 300), True),
        ("2 * round256(n)", {"n": 300}, (1024,), False),
        ("round256(n) + min(1, k) * round256(8)", {"n": 300, "k": 0}, (300,), True),
        ("round256(n) + min(1, k) * round256(8)", {"n": 300, "k": 5}, (300, 8), True),
        ("max(round256(n), round256(k) + round256(k))", {"n": 9, "k": 300}, (300, 300), True),
        ("round256(n) + 1024", {"n": 7}, (7, 1024), True),
        ("round256(n) + 1024", {"n": 7}, (512, 768), False),
        ("round256(n)", {"n": 7}, (), True),
    ],
)
def test_buffers_are_the_addends(
    formula: str, values: dict[str, int], sizes: tuple[int, ...], same: bool
) -> None:
    assert same_buffers(parse(formula), values, request(*sizes)) == same


@pytest.mark.parametrize(("sizes", "held"), [((MIB, MIB), True), ((2 * MIB,), False)])
def test_a_rule_whose_total_fits_but_not_its_buffers_is_not_taken(
    sizes: tuple[int, ...], held: bool
) -> None:
    """TurboQuant's continuation asks for K and V: two equal buffers, never one of both."""
    limits: dict[str, Limit] = {
        "max_model_len": 4096,
        "num_kv_heads": 4,
        "head_size": 128,
        "block_size": 16,
    }
    file = "vllm/v1/attention/backends/turboquant_attn.py"
    function = "TurboQuantAttentionImpl._continuation_prefill"
    found = by_rule(Site(file, function, (request(*sizes),), limits, "0.22.1"))
    assert isinstance(found, Bound) == held
