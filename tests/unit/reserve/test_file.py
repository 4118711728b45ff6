"""The config as a file: an exact round trip, and everything that `load` refuses."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.reserve.examples import CONTINUATION, LIMITS, SCRATCH, config
from wstrace.errors import WstraceError
from wstrace.reserve.config import (
    Model,
    NotCovered,
    ReserveConfig,
    SlotReserve,
    dumps,
    load_reserve,
    model_digest,
)
from wstrace.reserve.writer import quote
from wstrace.trace.records import Limit
from wstrace.units import human

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "reserve.yaml"


def _written(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    return path


def test_round_trip_of_the_example(path: Path) -> None:
    assert load_reserve(_written(path, dumps(config()))) == config()


def test_round_trip_of_a_config_without_sites(path: Path) -> None:
    empty = config(slots=[SlotReserve(bytes=1)], sites=[], not_covered=[], limits={})
    assert load_reserve(_written(path, dumps(empty))) == empty


@pytest.mark.parametrize("slots", [[], [SlotReserve(bytes=0)]])
def test_a_config_that_reserves_nothing_is_refused(
    path: Path, slots: list[SlotReserve]
) -> None:
    nothing = config(slots=slots, sites=[], not_covered=[], limits={})
    with pytest.raises(WstraceError, match="reserves nothing: all of its sizes are 0"):
        load_reserve(_written(path, dumps(nothing)))


names = st.one_of(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.text(max_size=8))
values = st.one_of(
    st.integers(-(2**63), 2**63),
    st.booleans(),
    st.none(),
    st.text(),
    st.lists(st.integers(-(2**63), 2**63)),
)


@settings(max_examples=60, deadline=None)
@given(name=st.text(), why=st.text(), limits=st.dictionaries(names, values, max_size=4))
def test_round_trip_of_any_text(
    tmp_path_factory: pytest.TempPathFactory, name: str, why: str, limits: dict[str, object]
) -> None:
    path = tmp_path_factory.mktemp("c") / "reserve.yaml"
    site = msgspec.structs.replace(SCRATCH, site=name, why=why)
    odd = config(sites=[site], limits=limits, not_covered=[NotCovered(site=why, why=name)])
    path.write_text(dumps(odd), "utf-8")
    assert load_reserve(path) == odd


@given(st.text())
def test_quote_is_read_back_by_any_yaml_reader(text: str) -> None:
    assert yaml.safe_load(quote(text)) == text


def test_the_file_teaches(path: Path) -> None:
    text = dumps(config())
    assert "not their sum" in text
    assert "bytes: 4194304  # 4.00 MiB" in text
    assert "a larger one can still fail" in text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (60358656, "57.56 MiB"),
        (1 << 50, "1024.00 TiB"),
    ],
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert human(size) == text


def _refused(path: Path, text: str) -> str:
    with pytest.raises(WstraceError) as caught:
        load_reserve(_written(path, text))
    assert caught.value.exit_code == 2
    assert str(caught.value).count("\n") == 1
    return caught.value.message


def _changed(old: str, new: str) -> str:
    text = dumps(config())
    assert text.count(old) >= 1
    return text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("version: 1", "version: 2", "version 2"),
        ("version: 1", "version: true", "version"),
        ("kind: wstrace-reserve", "kind: other", "not a wstrace reserve config"),
        ("    bytes: 4194304", "    bytes: -1", "-1 bytes is not a size"),
        ("    bytes: 4194304", "    bytes: 1125899906842625", "is not a size"),
        ("    bytes: 4194304", "    bytes: 1.5", "bytes"),
        ("    bytes: 4194304", "    bytes: 99999999999999999999999999", "bytes"),
        ("    bytes: 4194304", "    bytes: &a 4194304", "anchor"),
        ("    bytes: 4194304", "    bytes: !!int '4194304'", "tag"),
        ("    bytes: 4194304", "    bytes: 4194304\n    bytes: 1", "'bytes' is given twice"),
        ("    bytes: 4194304", "    byte: 4194304", "byte"),
        ("    grade: proved", "    grade: sure", "sure"),
        ("num_kv_heads * round", "num_kv_head * round", "unknown name 'num_kv_head'"),
        ('"max_model_len - 1"', '"max_len - 1"', "unknown name 'max_len'"),
        ('"max_model_len - 1"', '"max_model_len ** 2"', "not part of a formula"),
        ('"max_model_len - 1"', '"__import__(1)"', "unknown function"),
        ("  - ubatch: 0\n    lane: 1", "  - ubatch: 0\n    lane: 0", "slot is given twice"),
        ("  - ubatch: 0", "  - ubatch: -1", "slot"),
        ("    formula:", "    why_not:", "why_not"),
    ],
)
def test_refuses(path: Path, old: str, new: str, message: str) -> None:
    assert message in _refused(path, _changed(old, new))


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", "{", "a: [*b]", "&a [*a]", "? [1]\n: 2", "1: 2", "[" * 20000, "\t- :",
     "kind: wstrace-reserve\nversion: 1\nmodel: {digest: 2020-01-01}", "--- 1\n--- 2", "a: 1e",
     "kind: wstrace-reserve\nversion: 0x" + "f" * 9000],
)  # fmt: skip
def test_refuses_what_is_no_config(path: Path, text: str) -> None:
    _refused(path, text)


def test_a_proved_site_needs_its_formula(path: Path) -> None:
    bare = msgspec.structs.replace(CONTINUATION, formula=None)
    assert "has no formula" in _refused(path, dumps(config(sites=[bare])))


def test_the_size_limit_is_exact(path: Path) -> None:
    text = dumps(config())
    fits = text + "#" * ((1 << 20) - len(text) - 1) + "\n"
    assert load_reserve(_written(path, fits)) == config()
    assert "larger than 1.00 MiB" in _refused(path, fits + "\n")


def test_more_values_than_any_reserve_has_are_refused_early(path: Path) -> None:
    before = time.process_time()
    assert "no reserve config has so many" in _refused(path, "slots:\n" + "- [1, 2]\n" * 50_000)
    assert time.process_time() - before < 10


def test_binary_and_missing_and_special_files(tmp_path: Path) -> None:
    binary = tmp_path / "b"
    binary.write_bytes(b"\xff\xfe\x00")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (binary, tmp_path / "none", tmp_path, fifo, "a\0b"):
        with pytest.raises(WstraceError):
            load_reserve(path)


def test_unknown_limit_names_are_usable_when_recorded(path: Path) -> None:
    site = msgspec.structs.replace(CONTINUATION, drivers={"num_computed_tokens": "brand_new"})
    recorded = config(sites=[site], limits={"brand_new": 5})
    assert isinstance(load_reserve(_written(path, dumps(recorded))), ReserveConfig)


EDITS = [
    ("layout", "    num_kv_heads: 2", "    num_kv_heads: 4", "num_kv_heads is 4"),
    ("layout", '    dtype: "bfloat16"', '    dtype: "float32"', "dtype is float32"),
    ("layout", "    head_size: 64\n", "", "head_size is absent"),
    ("limits", "\n  num_kv_heads: 2", "\n  num_kv_heads: 4", "4 in the limits"),
    ("limits", "\n  head_size: 64", "", "absent in the limits"),
    ("both", "  num_kv_heads: 2", "  num_kv_heads: 4", "the digest"),
    ("digest", model_digest(LIMITS), "0" * 16, "the digest 0000000000000000 is not"),
]


@pytest.mark.parametrize(("where", "old", "new", "says"), EDITS)
def test_an_edit_of_the_model_under_the_same_digest_is_found(
    where: str, old: str, new: str, says: str, path: Path
) -> None:
    text = dumps(config())
    times = text.count(old)
    assert times == (2 if where == "both" else 1), times
    with pytest.raises(WstraceError, match=says):
        load_reserve(_written(path, text.replace(old, new)))


def test_limits_that_formulas_follow_may_be_edited(path: Path) -> None:
    text = dumps(config()).replace("max_model_len: 4096", "max_model_len: 8192")
    assert load_reserve(_written(path, text)).limits["max_model_len"] == 8192


def test_a_config_from_a_log_needs_no_digest_but_no_contradiction(path: Path) -> None:
    shown: dict[str, Limit] = {"num_kv_heads": 2}
    partial = config(model=Model(name="", digest="", layout={**shown, "head_size": 64}))
    partial = msgspec.structs.replace(partial, limits={**shown, "max_model_len": 4096})
    assert load_reserve(_written(path, dumps(partial))) == partial
    text = dumps(partial).replace("    num_kv_heads: 2", "    num_kv_heads: 8")
    with pytest.raises(WstraceError, match="num_kv_heads is 8"):
        load_reserve(_written(path, text))


def test_a_file_cut_at_any_line_is_refused(path: Path) -> None:
    """A YAML file that was cut at a line end is valid YAML still."""
    text = dumps(config())
    assert load_reserve(_written(path, text)) == config()
    lines = text.splitlines(keepends=True)
    last = next(n for n, line in enumerate(lines) if line.startswith("not_covered:"))
    for cut in range(1, last):
        with pytest.raises(WstraceError):
            load_reserve(_written(path, "".join(lines[:cut])))
