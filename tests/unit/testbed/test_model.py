from __future__ import annotations

import json
from pathlib import Path

import pytest

from wstrace.errors import WstraceError
from wstrace.testbed.model import build_model, byte_symbols


def test_every_byte_has_its_own_token(tmp_path: Path) -> None:
    build_model(tmp_path)
    vocabulary = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(256))
    assert vocabulary["A"] == 0x41
    assert vocabulary["Ġ"] == 0x20  # GPT-2's printed space
    assert vocabulary["Ċ"] == 0x0A


def test_the_symbols_are_byte_level_bpes() -> None:
    pre_tokenizers = pytest.importorskip("tokenizers.pre_tokenizers")
    assert set(byte_symbols()) == set(pre_tokenizers.ByteLevel.alphabet())


def test_text_survives_the_tokenizer(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    build_model(tmp_path)
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = "naïve 你好 <|x|>\n\tend"
    encoded = tokenizer.encode(text).ids
    assert encoded == list(text.encode())
    assert tokenizer.decode(encoded) == text


def test_a_folder_is_the_same_every_time(tmp_path: Path) -> None:
    for name in ("one", "two"):
        build_model(tmp_path / name)
    files = [
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in ("one", "two")
    ]
    assert files[0] == files[1]


def test_overrides_reach_the_config(tmp_path: Path) -> None:
    build_model(tmp_path, num_key_value_heads=2)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["num_key_value_heads"] == 2
    assert config["architectures"] == ["Qwen3ForCausalLM"]


def test_a_file_in_the_way_is_said(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(WstraceError, match="cannot write the model folder"):
        build_model(tmp_path / "taken")
