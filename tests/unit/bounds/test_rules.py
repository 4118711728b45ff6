"""Every known arena site is bound by its rule when its config is complete."""

from __future__ import annotations

import pytest

from wstrace.bounds.by_rule import outside
from wstrace.bounds.ways import bound_site
from wstrace.expr.expression import parse
from wstrace.known_sites import known
from wstrace.known_sites.known_site import KnownSite
from wstrace.trace.records import Limit, Request, Slot

NUMBERS = {
    "max_model_len": 8192, "max_num_batched_tokens": 512, "max_num_seqs": 16, "block_size": 64,
    "num_attention_heads": 16, "num_kv_heads": 4, "head_size": 128, "hidden_size": 1024,
    "tensor_parallel_size": 1, "data_parallel_size": 1, "num_experts": 8, "top_k": 2,
    "moe_intermediate_size": 256, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    "index_topk": 128, "index_head_dim": 128, "index_n_heads": 4,
}  # fmt: skip


def _complete(site: KnownSite) -> dict[str, Limit]:
    """A number for every name of the rule; 4 where nothing speaks for another."""
    names = {name.name for name in site.names}
    for text in (site.request_formula or "0", *site.drivers.values()):
        names |= parse(text).names
    names -= set(site.drivers)
    return {**dict.fromkeys(names, 4), **NUMBERS, "all2all_backend": "allgather_reducescatter"}


def _request(site: KnownSite, limits: dict[str, Limit]) -> Request:
    """A request at the drivers' limits, without a step: any values may have made it."""
    numbers = {name: value for name, value in limits.items() if isinstance(value, int)}
    drivers = {name: parse(text).evaluate(numbers) for name, text in site.drivers.items()}
    size = parse(site.request_formula or site.formula).evaluate({**numbers, **drivers})
    classes = {"fused_experts": list(site.experts[:1])} if site.experts else {}
    return Request(site=1, slot=Slot(), bytes=size, arena=0, phase="capture", classes=classes)


ARENA = [site for site in known.known_sites() if site.kind == "arena"]


@pytest.mark.parametrize("site", ARENA, ids=lambda site: site.id)
def test_a_complete_config_is_proved(site: KnownSite) -> None:
    limits = _complete(site)
    request = _request(site, limits)
    bound = bound_site([request], limits, file=site.files[0], function=site.functions[0])
    assert bound.grade == "proved", bound.why
    assert bound.bytes is not None
    assert bound.bytes >= request.bytes
    assert bound.known_site is not None


@pytest.mark.parametrize("site", ARENA, ids=lambda site: site.id)
def test_a_missing_number_is_named_and_never_guessed(site: KnownSite) -> None:
    needed = [name for name in site.names if name.default is None]
    if not needed:
        return
    limits = _complete(site)
    request = _request(site, limits)
    del limits[needed[0].name]
    bound = bound_site([request], limits, file=site.files[0], function=site.functions[0])
    if bound.grade == "proved":
        assert bound.known_site != site.id, "another alternative may hold without it"
    else:
        assert bound.bytes == request.bytes
        assert bound.known_site is not None


def test_a_request_that_no_length_gives_is_not_the_rules() -> None:
    site = known.require("turboquant.continuation_prefill")
    limits = _complete(site)
    request = _request(site, limits)
    odd = Request(site=1, slot=Slot(), bytes=request.bytes - 256, arena=0, phase="capture")
    bound = bound_site([request, odd], limits, file=site.files[0], function=site.functions[0])
    assert bound.grade == "observed"


@pytest.mark.parametrize("site", known.known_sites(), ids=lambda site: site.id)
def test_each_rule_declares_where_it_holds(site: KnownSite) -> None:
    """By a number, or with the reason why none restricts it; never both, never nothing."""
    assert bool(site.valid_when) != bool(site.anywhere)
    for condition in site.valid_when:
        assert parse(condition.zero).names <= site.vocabulary.keys()
        assert condition.when.startswith(("without ", "for ", "with "))


@pytest.mark.parametrize(
    "site", [site for site in known.known_sites() if site.valid_when], ids=lambda site: site.id
)
def test_outside_of_its_conditions_a_rule_proves_nothing(site: KnownSite) -> None:
    """A condition names the numbers that break it: one of the values below does."""
    for condition in site.valid_when:
        names = sorted(parse(condition.zero).names)
        broken = [dict.fromkeys(names, value) for value in (2, 0)]
        assert any(outside(site, numbers) for numbers in broken)
        switches = all(site.vocabulary[name].kind == "switch" for name in names)
        fine = (0,) if switches else (1, 64)
        assert any(not outside(site, dict.fromkeys(names, value)) for value in fine)
