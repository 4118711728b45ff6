"""`wstrace bound` as a person and as a script see it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

H100 = ["max_model_len=32768", "num_kv_heads=4", "head_size=128", "block_size=16"]


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "wstrace.cli.app", "bound", *argv]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def settings(*pairs: str) -> list[str]:
    return [word for pair in pairs for word in ("--set", pair)]


def as_json(*argv: str) -> dict[str, Any]:
    done = run(*argv, "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_json_of_a_known_site_is_the_contract() -> None:
    answer = as_json("turboquant.continuation_prefill", *settings(*H100))
    assert list(answer) == ["version", "bytes", "formula", "grade", "needs", "lever"]
    assert (answer["version"], answer["bytes"], answer["grade"]) == (1, 67_108_864, "proved")
    assert answer["needs"] == []
    assert answer["lever"]["flag"] == "--max-model-len"
    assert answer["lever"]["effect"]


def test_json_of_an_expression_has_no_grade() -> None:
    answer = as_json("2 * round256(heads * 100)", *settings("heads=3"))
    assert answer == {
        "version": 1,
        "bytes": 1024,
        "formula": "2 * round256(heads * 100)",
        "grade": None,
        "needs": [],
        "lever": None,
    }


def test_missing_numbers_are_named_and_the_bytes_are_null() -> None:
    answer = as_json("turboquant.continuation_prefill", *settings(*H100[:1]))
    assert answer["bytes"] is None
    assert answer["needs"] == ["block_size", "head_size", "num_kv_heads"]
    assert as_json("rows * 4")["needs"] == ["rows"]


def test_text_says_where_a_missing_number_stands() -> None:
    done = run("turboquant.continuation_prefill", *settings(*H100[:1]))
    assert done.returncode == 0
    assert "needs block_size, head_size, num_kv_heads" in done.stdout
    assert "config.json num_key_value_heads / tensor_parallel_size" in done.stdout
    assert "--set num_kv_heads=N" in done.stdout


def test_text_gives_the_bytes_and_what_moves_them() -> None:
    done = run("turboquant.continuation_prefill", *settings(*H100))
    assert "67,108,864 bytes (64.00 MiB), proved" in done.stdout
    assert "--max-model-len" in done.stdout
    assert "\x1b" not in done.stdout


def test_a_call_from_an_error_names_the_site() -> None:
    answer = as_json("turboquant_attn.py:747:_continuation_prefill", *settings(*H100))
    assert answer["bytes"] == 67_108_864


def test_the_version_chooses_the_formula() -> None:
    numbers = settings("max_model_len=1000000", "index_head_dim=128")
    assert as_json("indexer.kpool", "--vllm", "0.31.0", *numbers)["bytes"] == 5_281_048_576


def test_a_model_config_gives_its_numbers_and_set_wins(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps({"num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128})
    )
    numbers = settings("max_model_len=32768", "block_size=16")
    argv = ["turboquant.continuation_prefill", *numbers, "--model-config", str(path)]
    assert as_json(*argv)["bytes"] == 67_108_864
    assert as_json(*argv, *settings("num_kv_heads=2"))["bytes"] == 33_554_432
    assert as_json(*argv, *settings("tensor_parallel_size=2"))["bytes"] == 33_554_432


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["turboquant.decod"], "turboquant.decode"),
        (["turboquant_attn.py:1:_no_such"], "No known site is _no_such"),
        (["2 * (3"], "never closed"),
        (["a ** 2"], "not part of a formula"),
        (["a", "--set", "a=1.5"], "is not NAME=INTEGER"),
        (["a", "--set", "a"], "is not NAME=INTEGER"),
        (["moe.triton", "--set", "topk=8"], "Did you mean top_k?"),
        (["a // b", "--set", "a=1", "--set", "b=0"], "divides by zero"),
        (["a", "--model-config", "/nonexistent/config.json"], "cannot be read"),
    ],
)
def test_mistakes_are_two_lines_and_exit_2(argv: list[str], said: str) -> None:
    done = run(*argv)
    assert done.returncode == 2
    assert done.stdout == ""
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 2
