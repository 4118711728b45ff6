"""One row a number: what a row forgot, and that all readers derive from the rows."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.matrix.vllm_config import lacks, moved, newest_place, stand_in
from tests.unit.triage.generator import read
from wstrace.expr.expression import parse
from wstrace.known_sites.known import known_sites
from wstrace.recorder.vllm_state import config_limits
from wstrace.recorder.vllm_state.config_limits import read_limits
from wstrace.versions import package_version
from wstrace.vllm.limits import LIMIT_NAMES, NUMBERS
from wstrace.vllm.model_config import expert_parallel_size, names_of
from wstrace.vllm.number import Number

ROWS = list(NUMBERS.values())
DOCS = Path(__file__).resolve().parents[3] / "docs"
OWN_READERS = {
    "num_sms",
    "dtype_size",
    "reorder_batch_threshold",
    "kernel_block_size",
    "max_encoder_len",
    "mixed_graph_tokens",
    "widest_mixed_graph",
    "expert_parallel_size",
    "sequence_parallel_size",
    "moe_hidden_dim",
    "moe_intermediate_dim",
    "num_local_experts",
    "moe_max_num_tokens",
    "num_dispatchers",
}
"""What the recorder reads from live objects and not from a path: see vllm_state."""


def example(row: Number) -> Any:
    """A value such as vLLM's config holds for the row."""
    kinds = {"switch": True, "word": "fp8", "sizes": [1, 2, 4]}
    return kinds.get(row.kind, 24)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_says_all_that_belongs_to_it(row: Number) -> None:
    assert row.meaning
    assert (row.default is None) == (not row.why)
    assert isinstance(row.default, int | None) or parse(row.default).names <= NUMBERS.keys()
    read_somewhere = row.config or row.keys or row.env or row.name in OWN_READERS
    assert read_somewhere or row.use in ("rule", "told")
    assert row.use != "told" or row.logged
    assert set(row.shared_by) <= NUMBERS.keys()


def test_no_place_belongs_to_two_rows() -> None:
    for of in (lambda r: r.config, lambda r: (r.env,), lambda r: r.spellings):
        places = [place for row in ROWS for place in of(row) if place]
        assert len(places) == len(set(places))


def test_docs_name_every_limit() -> None:
    text = (DOCS / "known-sites.md").read_text("utf-8")
    missing = {
        row.name for row in ROWS if row.use != "told" and f"\n| `{row.name}` | " not in text
    }
    assert missing == set()


def test_a_rule_names_only_rows_and_numbers_of_its_own() -> None:
    for site in known_sites():
        for variant in site.variants:
            texts = (variant.formula, *variant.drivers.values())
            used = set().union(*(parse(text).names for text in texts))
            assert used - site.vocabulary.keys() == set(), site.id


def engine() -> Path:
    """The folder that the pinned engine lies in."""
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("needs the pinned engine")
    return Path(spec.origin).parents[1]


@pytest.mark.parametrize("row", [r for r in ROWS if r.config or r.env], ids=lambda r: r.name)
def test_the_pinned_engine_has_the_row_where_it_says(row: Number) -> None:
    """In the other releases: tests/matrix/test_config.py."""
    assert moved(row, engine(), str(package_version("vllm"))) == ""


def test_a_row_that_names_a_wrong_place_is_told() -> None:
    def told(**said: Any) -> str:
        return moved(Number(meaning="", name="x", **said), engine(), "0.32.0")

    wrong = "cache_config.blocksize"
    assert told(config=(wrong,)) == "x: vLLM 0.32.0 has no CacheConfig.blocksize"
    assert told(config=("cash.block_size",)) == "x: vLLM 0.32.0 has no VllmConfig.cash"
    assert told(env="VLLM_NO_SUCH") == "x: vLLM 0.32.0 has no environment VLLM_NO_SUCH"
    assert told(config=(wrong, "cache_config.block_size")) == ""
    assert "since or until" in told(config=("cache_config.block_size",), since="0.33.0")
    assert "since or until" in told(config=("cache_config.block_size",), until="0.32.0")
    assert told(config=(wrong,), since="0.33.0") == told(config=(wrong,), until="0.32.0") == ""


def test_a_renamed_path_is_told_also_where_the_old_one_is_still_there() -> None:
    def told(*paths: str, until: str = "") -> str:
        row = Number(meaning="", name="x", config=paths, until=until)
        return newest_place(row, engine(), "0.32.0")

    wrong, right = "cache_config.blocksize", "cache_config.block_size"
    assert told(wrong, right).startswith("x: vLLM 0.32.0 has no CacheConfig.blocksize")
    assert told(right, wrong) == told(right) == told(wrong, until="0.32.0") == told() == ""


def test_the_recorder_reads_each_row_of_an_object_that_has_the_engines_fields() -> None:
    """Each field of the stand-in holds its own class and name."""
    limits = read_limits(stand_in(engine()))
    placed = [row for row in ROWS if row.config and not row.until]
    assert len(placed) > 25
    for row in placed:
        parts = next(path for path in row.config if not lacks(engine(), path)).split(".")
        assert str(limits.get(row.name)).endswith(f"Config.{parts[-1]}"), row.name


def test_of_several_spellings_the_newest_that_a_release_has_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = Number(meaning="", name="x", config=("parallel_config.new", "parallel_config.old"))
    monkeypatch.setattr(config_limits, "rows", lambda: [row])

    def read_of(**fields: int) -> object:
        parallel = SimpleNamespace(**fields)
        config = SimpleNamespace(model_config=None, parallel_config=parallel)
        return read_limits(config).get("x")

    assert (read_of(old=1), read_of(old=1, new=2), read_of()) == (1, 2, None)


@pytest.mark.parametrize(
    "row", [r for r in ROWS if r.spellings and r.kind != "sizes"], ids=lambda row: row.name
)
def test_a_log_gives_the_row_in_the_dump_and_on_the_command_line(row: Number) -> None:
    if row.name == "cudagraph_mode":  # an enumeration of its own form: test_settings.py
        return
    value = example(row)
    for said in row.spellings:
        dump = f"LLM engine (v0.28.0) with config: model='m', {said}={value},"
        assert read(dump).config[row.name] == value
        flag = f"--{said.replace('_', '-')}" + ("" if row.kind == "switch" else f" {value}")
        assert read(f"vllm serve m {flag}").config[row.name] == value


def _experts(row: Number) -> dict[str, int]:
    """A layer's width is an expert's only where there are experts."""
    return {"num_experts": 8} if row.name == "moe_intermediate_size" else {}


@pytest.mark.parametrize("row", [r for r in ROWS if r.keys], ids=lambda row: row.name)
def test_a_model_config_gives_the_row(row: Number) -> None:
    for key in row.keys:
        config: dict[str, Any] = {"vision_n_layers": 1} | _experts(row)
        outer, _, inner = key.partition(".")
        config[outer] = {inner: 24} if inner else [24] if outer == "compress_ratios" else 24
        assert names_of(config, {})[row.name] == 24


def test_what_a_trace_has_is_what_a_reserve_may_follow() -> None:
    assert {"max_num_seqs", "compress_ratio"} <= LIMIT_NAMES
    assert "index_n_groups" not in LIMIT_NAMES
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in LIMIT_NAMES)


@pytest.mark.parametrize(
    ("sizes", "width"),
    [
        ({"tensor_parallel_size": 2}, 704),
        ({"tensor_parallel_size": 2, "data_parallel_size": 2}, 352),
        ({"data_parallel_size": 4, "prefill_context_parallel_size": 2}, 176),
        ({"tensor_parallel_size": 2, "data_parallel_size": 2, "expert_parallel_size": 4}, 1408),
        ({"tensor_parallel_size": 2, "enable_expert_parallel": 1}, 1408),
    ],
)
def test_recorder_and_config_file_share_an_experts_width_as_vllm_does(
    sizes: dict[str, int], width: int
) -> None:
    """DeepSeek-V2-Lite has experts of 1408. FusedMoEParallelConfig.make shards them over
    TP * DP * PCP ranks, in 0.13.0 as in 0.33.0."""
    model = {"moe_intermediate_size": 1408, "n_routed_experts": 64}
    assert names_of(model, sizes)["moe_intermediate_size"] == width
    experts = expert_parallel_size(sizes) > 1
    groups = {name: size for name, size in sizes.items() if name != "expert_parallel_size"}
    parallel = SimpleNamespace(**groups | {"enable_expert_parallel": experts})
    text = SimpleNamespace(**model)
    live = SimpleNamespace(
        model_config=SimpleNamespace(hf_text_config=text), parallel_config=parallel
    )
    assert read_limits(live)["moe_intermediate_size"] == width
