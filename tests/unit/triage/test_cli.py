"""`wstrace triage` as a command."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tests.unit.triage.generator import Failure, log_lines
from wstrace.cli.commands import triage
from wstrace.errors import WstraceError

APP = typer.Typer()
APP.command()(triage.command)
TEXT = "\n".join(log_lines(Failure().traceback(), "EngineCore pid=1"))
SETS = ["num_kv_heads=4", "head_size=256", "max_model_len=8k", "block_size=16"]


def _run(*arguments: str, stdin: str | None = None) -> str:
    result = CliRunner().invoke(APP, list(arguments), input=stdin)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0
    return result.stdout


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "crash.log"
    path.write_text(TEXT, "utf-8")
    return path


def test_file_and_stdin(log: Path) -> None:
    assert "crash.log: 1 finding" in _run(str(log))
    assert "stdin: 1 finding" in _run(stdin=TEXT)
    assert "stdin: 1 finding" in _run("-", stdin=TEXT)


def test_no_failure_is_no_error() -> None:
    assert "No failure found" in _run(stdin="all is well")


def test_set_fills_the_bound(log: Path) -> None:
    arguments = [part for text in SETS for part in ("--set", text)]
    made = json.loads(_run(str(log), "--format", "json", *arguments))
    worst = made["findings"][0]["worst_case"]
    assert worst["bytes"] == 2 * 4 * 8000 * 256 * 2
    assert worst["grade"] == "proved"


@pytest.mark.parametrize("text", ["num_kv_heads=0", "block_size=0", "head_size=-4"])
def test_a_size_of_nothing_is_refused(log: Path, text: str) -> None:
    with pytest.raises(WstraceError, match="--set"):
        _run(str(log), "--set", text)


@pytest.mark.parametrize(
    "name", ["num_speculative_tokens", "max_image_tokens", "enable_expert_parallel"]
)
def test_what_may_be_absent_may_be_0(log: Path, name: str) -> None:
    assert "1 finding" in _run(str(log), "--set", f"{name}=0")


def test_an_unknown_name_is_refused_with_the_nearest(log: Path) -> None:
    with pytest.raises(WstraceError, match="num_kv_head'") as refused:
        _run(str(log), "--set", "num_kv_head=4")
    assert "num_kv_heads" in str(refused.value.hint)


def test_the_command_to_type_repeats_what_was_given(log: Path, tmp_path: Path) -> None:
    model = tmp_path / "config of mine.json"
    model.write_text(
        '{"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, '
        '"hidden_size": 2048}',
        "utf-8",
    )
    given = f"--model-config '{model}' --set max_model_len=8192"
    shown = _run(str(log), "--model-config", str(model), "--set", "max_model_len=8192")
    assert f"{given} --set block_size=N" in shown
    shown = _run(str(log), *shlex.split(given), "--set", "block_size=16")
    assert f"{given} --set block_size=16 --reserve" in shown


def test_model_config_gives_per_rank_numbers(log: Path, tmp_path: Path) -> None:
    model = tmp_path / "config.json"
    model.write_text(
        '{"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, '
        '"hidden_size": 4096}',
        "utf-8",
    )
    made = json.loads(
        _run(
            str(log), "--format", "json", "--model-config", str(model),
            "--set", "tensor_parallel_size=2", "--set", "max_model_len=8192",
            "--set", "block_size=16",
        )
    )  # fmt: skip
    assert made["findings"][0]["worst_case"]["bytes"] == 2 * 4 * 8192 * 256 * 2


def test_reserve_file(log: Path, tmp_path: Path) -> None:
    target = tmp_path / "reserve.yaml"
    _run(str(log), "--reserve", str(target), *[p for t in SETS for p in ("--set", t)])
    assert "kind: wstrace-reserve" in target.read_text("utf-8")


def test_incomplete_reserve_writes_nothing(log: Path, tmp_path: Path) -> None:
    target = tmp_path / "reserve.yaml"
    with pytest.raises(WstraceError, match="still needs"):
        _run(str(log), "--reserve", str(target))
    assert not target.exists()


def test_the_extension_chooses_the_form(log: Path, tmp_path: Path) -> None:
    for name, start in (("a.json", "{"), ("a.md", "### "), ("a.txt", "crash.log")):
        _run(str(log), "-o", str(tmp_path / name))
        assert (tmp_path / name).read_text("utf-8").startswith(start)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("num_kv_heads", "not NAME=VALUE"),
        ("num_kv_heads=four", "not a whole number"),
        ("=4", "not NAME=VALUE"),
        ("a-b!=4", "no number called 'a_b!'"),
    ],
)
def test_bad_set(log: Path, text: str, told: str) -> None:
    with pytest.raises(WstraceError, match=told):
        _run(str(log), "--set", text)


EXPERTS = ["hidden_size=4096", "top_k=8", "moe_intermediate_size=1024", "num_experts=64"]
OF_EXPERTS = (
    "vllm serve m --max-num-batched-tokens 8192 -tp 2 -dp 2 --enable-expert-parallel\n"
    "AssertionError: Workspace is locked but allocation from "
    "'modular_kernel.py:1:_allocate_buffers' requires 9.94 MB, current size is 0.00 MB. "
    "Workspace growth is not allowed after locking.\n"
)


@pytest.mark.parametrize(
    ("backend", "size"),
    [
        # (token, expert) pairs of two ranks, each K and 2N columns of two bytes
        ("deepep_high_throughput", 2 * 8192 * 8 * (4096 + 2 * 1024) * 2),
        ("deepep_low_latency", None),
    ],
)
def test_a_log_can_be_told_its_all2all(tmp_path: Path, backend: str, size: int | None) -> None:
    log = tmp_path / "experts.log"
    log.write_text(OF_EXPERTS)
    sets = [p for t in (*EXPERTS, f"all2all-backend={backend}") for p in ("--set", t)]
    (finding,) = json.loads(_run(str(log), "--format", "json", *sets))["findings"]
    assert finding["worst_case"]["bytes"] == size
    again = f"--set all2all_backend={backend} --reserve"
    assert (again in _run(str(log), *sets)) == (size is not None)


def test_a_word_that_no_formula_follows_is_refused(log: Path) -> None:
    with pytest.raises(WstraceError, match="no number called 'dtype'"):
        _run(str(log), "--set", "dtype=bfloat16")
