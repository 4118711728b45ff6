"""The data of the known sites: complete, consistent, and found by file and function."""

from __future__ import annotations

from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wstrace.bounds.by_rule import rule_bound
from wstrace.errors import WstraceError
from wstrace.expr.expression import parse
from wstrace.expr.maximum import maximise
from wstrace.known_sites import known
from wstrace.known_sites.known import KnownSite, known_sites, match, require
from wstrace.versions import numbers_of
from wstrace.vllm.roles import ROLES

SITES = known_sites()
every_site = pytest.mark.parametrize("site", SITES, ids=lambda s: s.id)
every_variant = pytest.mark.parametrize(
    "site", [s.at(v.since) for s in SITES for v in s.variants], ids=lambda s: s.id
)


def test_ids_are_unique() -> None:
    assert len({site.id for site in SITES}) == len(SITES)


@every_site
def test_a_site_says_what_it_is_and_what_moves_it(site: KnownSite) -> None:
    assert site.title
    assert site.files
    assert site.functions
    assert site.notes
    assert site.lever.flag
    assert site.lever.effect
    assert site.not_levers
    assert all(flag.flag and flag.why for flag in site.not_levers)
    assert site.covers


def _of_flag(flag: str, site: KnownSite) -> set[str]:
    """The numbers that the rule takes and that this flag or variable sets."""
    name = flag.removeprefix("environment ").partition(" ")[0]
    rows = (row for row in site.vocabulary.values() if row.flag or row.env)
    return {r.name for r in rows if name in (r.flag.partition(" ")[0], r.env)} & site.takes


@every_variant
def test_no_flag_is_called_idle_that_the_formula_takes(site: KnownSite) -> None:
    """`not_levers` are told to people who look for what lowers the bytes."""
    assert {
        f.flag: _of_flag(f.flag, site) for f in site.not_levers if _of_flag(f.flag, site)
    } == {}


SET_BY_THE_LEVER = {
    "--max-num-batched-tokens": {"moe_max_num_tokens"},
    "--max-model-len": {"b12x_compressed_mla_scratch_bytes"},
    "--max-num-seqs": {"b12x_scratch_bytes"},
}
"""Numbers that vLLM or a kernel's library makes of a flag."""


@every_variant
def test_the_lever_moves_the_bytes(site: KnownSite) -> None:
    """Unless what it does is to take the lock away. Some numbers count only above another."""
    if "size itself is fixed" in site.lever.effect or "no graphs, no lock" in site.lever.effect:
        assert site.lever.flag == "--enforce-eager"
        return
    moved = _of_flag(site.lever.flag, site) or (
        SET_BY_THE_LEVER.get(site.lever.flag.rpartition(" ")[2], set()) & site.takes
    )
    assert moved
    values = {name.name: 64 for name in site.names} | {"max_num_batched_tokens": 1 << 20}
    large = values | dict.fromkeys(moved, 1 << 24)
    assert (rule_bound(site, large).bytes or 0) > (rule_bound(site, values).bytes or 0)


@every_site
def test_variants_stand_in_order_of_version(site: KnownSite) -> None:
    starts = [numbers_of(variant.since) for variant in site.variants]
    assert None not in starts
    assert starts == sorted(set(starts), key=lambda s: s or ())


@every_variant
def test_a_site_with_every_number_has_a_bound(site: KnownSite) -> None:
    worst = rule_bound(site, {name.name: 64 for name in site.names})
    assert worst.bytes is not None
    assert worst.bytes > 0
    assert worst.grade == "proved"


@every_variant
def test_a_missing_number_is_named_with_where_to_find_it(site: KnownSite) -> None:
    without_default = {name.name for name in site.names if name.default is None}
    worst = rule_bound(site, {})
    assert set(worst.needs) >= without_default
    assert (worst.bytes is None) == bool(worst.needs)
    assert all(f"--set {name.name}=N" in name.where() for name in site.names)


@every_variant
def test_drivers_are_scheduler_quantities_with_limits_in_the_config(site: KnownSite) -> None:
    assert site.drivers.keys() <= ROLES.keys() | site.vocabulary.keys()
    config = {name.name for name in site.names}
    asked: frozenset[str] = frozenset().union(*(parse(text).names for text in site.requests))
    assert site.drivers.keys() <= asked
    assert asked - site.drivers.keys() <= config
    for limit in site.drivers.values():
        assert parse(limit).names <= config


@every_variant
def test_no_request_inside_the_limits_is_above_the_bound(site: KnownSite) -> None:
    for scale in (1, 3, 8, 40, 129):
        values = {name.name: scale + i for i, name in enumerate(site.names)}
        values |= {"max_num_batched_tokens": 50 * scale, "max_model_len": 700 * scale}
        values["compress_ratio"] = min(scale, 128)  # the largest ratio is 128
        ranges = {
            role: (1, max(1, parse(limit).evaluate(values)))
            for role, limit in site.drivers.items()
        }
        most = [maximise(parse(text), values, ranges) for text in site.requests]
        assert all(found.exact for found in most)
        assert rule_bound(site, values).bytes == max(found.value for found in most)
        assert parse(site.formula).evaluate(values) >= max(found.value for found in most)


@given(st.sampled_from(SITES), st.integers(1, 64), st.integers(1, 64))
def test_more_of_the_step_never_needs_less(site: KnownSite, scale: int, more: int) -> None:
    small = {name.name: scale for name in site.names}
    large = {**small, "max_num_batched_tokens": scale + more, "max_num_seqs": scale + more}
    assert (rule_bound(site, large).bytes or 0) >= (rule_bound(site, small).bytes or 0)


def test_a_site_is_found_by_suffix_base_name_and_plain_function() -> None:
    function = "TurboQuantAttentionImpl._continuation_prefill"
    for file in (
        "vllm/v1/attention/backends/turboquant_attn.py",
        "/opt/venv/site-packages/vllm/v1/attention/backends/turboquant_attn.py",
        "backends\\turboquant_attn.py",
        "turboquant_attn.py",
    ):
        for name in (function, "_continuation_prefill"):
            found = match(file, name)
            assert found is not None
            assert found.id == "turboquant.continuation_prefill"


@pytest.mark.parametrize(
    ("file", "function"),
    [
        ("turboquant_attn.py", "_prefill_attention"),
        ("other/turboquant_attn.py", "_continuation_prefill"),
        ("my_turboquant_attn.py", "_continuation_prefill"),
        ("turboquant_attn.py", "Other._continuation_prefill"),
        ("", "_continuation_prefill"),
    ],
)
def test_another_file_or_function_is_no_known_site(file: str, function: str) -> None:
    assert match(file, function) is None


def test_a_longer_path_decides_between_models() -> None:
    gather = "DeepseekV4FlashMLAAttention._forward_prefill"
    v4 = match("vllm/models/deepseek_v4/nvidia/flashmla.py", gather)
    v41 = match("vllm/models/deepseek_v41/nvidia/flashmla.py", gather)
    assert v4 is not None
    assert v41 is not None
    assert (v4.id, v41.id) == ("deepseek_v4.prefill_gather", "deepseek_v41.prefill_gather")


def test_alternatives_of_one_call_are_all_given() -> None:
    found = known.matches("modular_kernel.py", "_allocate_buffers", "0.26.0")
    assert found[0].id == "moe.triton"
    assert {site.id for site in found} >= {"moe.triton", "moe.deep_gemm", "moe.output_only"}
    assert all(site.choice for site in found)


@pytest.mark.parametrize(
    ("version", "since"),
    [
        ("0.9.0", "0.13.0"),
        ("0.16.0", "0.13.0"),
        ("0.18.1", "0.18.1"),
        ("0.20.2rc1.dev35+g4845aee6b", "0.18.1"),
        ("0.34.0", "0.31.0"),
        ("main Jul 2026", "0.31.0"),
        ("0.1.dev20051+g487ecf187", "0.31.0"),
        (None, "0.31.0"),
    ],
)
def test_the_formula_follows_the_version(version: str | None, since: str) -> None:
    assert require("mla.flashmla_sparse_fp8").at(version).variant.since == since


def test_what_vllm_reserves_itself_follows_the_version() -> None:
    site = require("turboquant.continuation_prefill")
    before, after = site.cover("0.21.0"), site.cover("0.26.0")
    assert before is not None
    assert after is not None
    assert (before.covers, after.covers, after.counted) == ("none", "partial", False)


def test_defaults_of_vllm_are_taken_and_said() -> None:
    worst = rule_bound(
        require("turboquant.decode"),
        {"max_num_seqs": 1, "num_attention_heads": 24, "head_size": 256},
    )
    assert worst.bytes == 802_048
    assert worst.assumed == (
        "mixed_graph_tokens = 0 (no full graph of a mixed step)",
        "tq_max_kv_splits = 32 (vLLM's default)",
    )


@pytest.mark.parametrize(("length", "factor"), [(262_144, 5), (262_145, 2), (1 << 20, 2)])
def test_a_default_may_follow_another_number(length: int, factor: int) -> None:
    worst = rule_bound(
        require("indexer.sparse_attn"), {"max_model_len": length, "index_head_dim": 128}
    )
    assert f"sparse_mla_prefill_workspace_factor = {factor}" in worst.assumed[1]


def test_the_peak_of_a_formula_that_is_not_monotone_is_found() -> None:
    numbers = {
        "max_num_seqs": 1024,
        "num_speculative_tokens": 0,
        "num_attention_heads": 16,
        "decode_context_parallel_size": 1,
        "max_model_len": 131_072,
        "num_sms": 304,
        "kv_lora_rank": 512,
    }
    site = require("mla.aiter_dcp_verify")
    at_limit = parse(site.request_formula).evaluate({**numbers, "num_decode_tokens": 1024})
    row = 16 * 513 * 4
    assert at_limit == 2048 * row
    assert rule_bound(site, numbers).bytes == 2428 * row  # 607 rows of four splits


def test_an_unknown_id_names_the_nearest() -> None:
    with pytest.raises(WstraceError) as error:
        require("turboquant.continuation")
    assert "turboquant.continuation_prefill" in error.value.hint


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (("title =", "titel ="), r"moe.toml: Object contains unknown field `titel`"),
        (('since = "0.13.0"', "since = 13"), r"moe.toml: Expected `str`, got `int` - at `\$"),
        (("[[site]]", "[[site"), r"moe.toml: "),
        (("triage_class =", "triage_class = 'never'  #"), r"moe.toml: Invalid enum value"),
    ],
)
def test_a_mistake_in_a_data_file_names_the_file_and_the_field(
    edit: tuple[str, str], told: str
) -> None:
    text = (files("wstrace.known_sites") / "moe.toml").read_text("utf-8")
    with pytest.raises(WstraceError, match=told):
        known._read("moe.toml", text.replace(*edit, 1).encode())


def test_a_formula_with_an_unknown_number_names_it_and_the_site() -> None:
    text = (files("wstrace.known_sites") / "moe.toml").read_text("utf-8")
    family = known._read("moe.toml", text.replace("moe_hidden_dim", "moe_hiden_dim").encode())
    with pytest.raises(WstraceError) as told:
        [site.names for site in family.sites()]
    assert "moe." in told.value.message
    assert "moe_hiden_dim" in told.value.message
    assert "[site.names.moe_hiden_dim]" in told.value.hint
