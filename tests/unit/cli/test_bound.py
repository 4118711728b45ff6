"""`wstrace bound` as a person and as a script see it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from wstrace.cli import app

if TYPE_CHECKING:
    from pathlib import Path

H100 = ["max_model_len=32768", "num_kv_heads=4", "head_size=128", "block_size=16"]


class Done(NamedTuple):
    """What a command wrote and how it ended."""

    code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`wstrace bound ARGV` in this process."""

    def run(*argv: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["wstrace", "bound", *argv])
        with pytest.raises(SystemExit) as ended:
            app.main()
        return Done(int(ended.value.code or 0), *capsys.readouterr())

    return run


def settings(*pairs: str) -> list[str]:
    return [word for pair in pairs for word in ("--set", pair)]


def as_json(bound: Run, *argv: str) -> dict[str, Any]:
    done = bound(*argv, "--format", "json")
    assert (done.code, done.err) == (0, "")
    answer: dict[str, Any] = json.loads(done.out)
    return answer


def test_json_of_a_known_site_is_the_contract(bound: Run) -> None:
    answer = as_json(bound, "turboquant.continuation_prefill", *settings(*H100))
    first = ["version", "bytes", "formula", "grade", "needs", "lever"]
    assert list(answer)[:6] == first
    assert (answer["version"], answer["bytes"]) == (1, 67_108_864)
    assert (answer["grade"], answer["confirmed"]) == ("rule, not confirmed by a trace", False)
    assert answer["needs"] == []
    assert answer["lever"]["flag"] == "--max-model-len"
    assert answer["lever"]["effect"]


def test_json_of_an_expression_has_no_grade(bound: Run) -> None:
    answer = as_json(bound, "2 * round256(heads * 100)", *settings("heads=3"))
    assert answer == {
        "version": 1,
        "bytes": 1024,
        "formula": "2 * round256(heads * 100)",
        "grade": None,
        "needs": [],
        "lever": None,
        "confirmed": False,
        "assumed": [],
        "holds_for": None,
        "holds_only": [],
        "holds_anywhere": None,
        "taken_for": None,
    }


def test_missing_numbers_are_named_and_the_bytes_are_null(bound: Run) -> None:
    answer = as_json(bound, "turboquant.continuation_prefill", *settings(*H100[:1]))
    assert answer["bytes"] is None
    assert answer["needs"] == ["block_size", "head_size", "num_kv_heads"]
    assert as_json(bound, "rows * 4")["needs"] == ["rows"]


def test_text_says_where_a_missing_number_stands(bound: Run) -> None:
    done = bound("turboquant.continuation_prefill", *settings(*H100[:1]))
    assert done.code == 0
    assert "needs block_size, head_size, num_kv_heads" in done.out
    assert "config.json num_key_value_heads or num_kv_heads" in done.out
    assert "--set num_kv_heads=N" in done.out


def test_text_gives_the_bytes_and_what_moves_them(bound: Run) -> None:
    done = bound("turboquant.continuation_prefill", *settings(*H100))
    assert "67,108,864 bytes (64.00 MiB), rule, not confirmed by a trace" in done.out
    assert "--max-model-len" in done.out
    assert "\x1b" not in done.out


def test_a_call_from_an_error_names_the_site(bound: Run) -> None:
    answer = as_json(bound, "turboquant_attn.py:747:_continuation_prefill", *settings(*H100))
    assert answer["bytes"] == 67_108_864


def test_the_version_chooses_the_formula(bound: Run) -> None:
    numbers = settings("max_model_len=1000000", "index_head_dim=128")
    assert (
        as_json(bound, "indexer.kpool", "--vllm", "0.31.0", *numbers)["bytes"] == 5_281_048_576
    )


def test_a_model_config_gives_its_numbers_and_set_wins(bound: Run, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps({"num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128})
    )
    numbers = settings("max_model_len=32768", "block_size=16")
    argv = ["turboquant.continuation_prefill", *numbers, "--model-config", str(path)]
    assert as_json(bound, *argv)["bytes"] == 67_108_864
    assert as_json(bound, *argv, *settings("num_kv_heads=2"))["bytes"] == 33_554_432
    assert as_json(bound, *argv, *settings("tensor_parallel_size=2"))["bytes"] == 33_554_432


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["turboquant.decod"], "turboquant.decode"),
        (["turboquant_attn.py:1:_no_such"], "No known site is _no_such"),
        (["2 * (3"], "never closed"),
        (["a ** 2"], "not part of a formula"),
        (["a", "--set", "a=1.5"], "not a whole number"),
        (["a", "--set", "a"], "not NAME=VALUE"),
        (["a", "--set", "a=1", "--set", "a=2"], "a twice: 1 and 2"),
        (["a", "--set", "b=1"], "a has no 'b'"),
        (["moe.triton", "--set", "topk=8"], "Did you mean top_k?"),
        (["a // b", "--set", "a=1", "--set", "b=0"], "divides by zero"),
        (["moe.triton", "--set", "top_k=0"], "top_k is 1 or more"),
        (["turboquant.decode", "--set", "head_size=-1"], "head_size is 1 or more"),
        (["rows * head_size", "--set", "head_size=-1"], "head_size is 1 or more"),
        (["a", "--model-config", "/dev/zero"], "a device, not a file"),
        (["moe.triton", "--vllm", "newest"], "names no release"),
        (["moe.triton", "--vllm", ""], "Empty value for --vllm"),
        (["a", "--model-config", "/nonexistent/config.json"], "cannot be read"),
    ],
)
def test_mistakes_are_two_lines_and_exit_2(bound: Run, argv: list[str], said: str) -> None:
    done = bound(*argv)
    assert done.code == 2
    assert done.out == ""
    assert said in done.err
    assert len(done.err.strip().splitlines()) == 2


@pytest.mark.parametrize("name", ["num_speculative_tokens", "max_cudagraph_capture_size"])
def test_what_vllm_leaves_at_0_may_be_0_and_not_below(bound: Run, name: str) -> None:
    assert as_json(bound, f"7 + {name}", *settings(f"{name}=0"))["bytes"] == 7
    done = bound(f"7 + {name}", *settings(f"{name}=-1"))
    assert (done.code, f"{name} is 0 or more" in done.err) == (2, True)


def test_names_of_ones_own_may_be_anything(bound: Run) -> None:
    assert as_json(bound, "9 + mine", *settings("mine=-2"))["bytes"] == 7


def test_kv_heads_that_the_ranks_cannot_share_are_refused(bound: Run, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"num_attention_heads": 20, "num_key_value_heads": 5}))
    argv = ["turboquant.continuation_prefill", "--model-config", str(path)]
    done = bound(*argv, *settings("tensor_parallel_size=4"))
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("wstrace: num_kv_heads 5 does not divide by 4")
    assert len(done.err.splitlines()) == 2
    numbers = ["tensor_parallel_size=4", "num_kv_heads=2", "head_size=64", "block_size=16"]
    answer = as_json(bound, *argv, *settings(*numbers, "max_model_len=1024"))
    assert answer["bytes"] == 2 * 2 * 1024 * 64 * 2


def test_the_module_is_the_program() -> None:
    command = [sys.executable, "-m", "wstrace", "bound", "2 * rows", "--set", "rows=21"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "42 bytes" in done.stdout


def test_importing_the_module_runs_and_loads_nothing() -> None:
    code = "import sys, wstrace.__main__; sys.exit('typer' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"")


def test_the_real_program_ends_with_the_same_code() -> None:
    command = [sys.executable, "-m", "wstrace.cli.app", "bound", "2 * (3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 2


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["moe.triton", *settings("prefill_context_parallel_size=2")], "holds only without"),
        (
            ["turboquant.continuation_prefill", *settings("decode-context-parallel-size=2")],
            "does not take decode_context_parallel_size",
        ),
    ],
)
def test_a_number_that_the_rule_would_ignore_is_refused(
    bound: Run, argv: list[str], told: str
) -> None:
    done = bound(*argv)
    assert done.code == 2
    assert told in done.err
    assert len(done.err.splitlines()) == 2


def test_what_is_known_to_move_nothing_may_be_given(bound: Run) -> None:
    numbers = settings(*H100, "max_num_seqs=16")
    assert as_json(bound, "turboquant.continuation_prefill", *numbers)["bytes"] == 67_108_864


def test_an_answer_names_what_it_assumes_and_where_it_holds(bound: Run) -> None:
    model = ("hidden_size=7168", "moe_intermediate_size=2048", "top_k=8")
    argv = settings("max_num_batched_tokens=8192", *model)
    answer = as_json(bound, "moe.triton", *argv, "--vllm", "0.1.dev12345+gabc")
    assert not answer["confirmed"]
    assert "data_parallel_size = 1 (vLLM's default)" in answer["assumed"]
    assert "moe_hidden_dim = 7168 (no padding)" in answer["assumed"]
    assert answer["holds_only"][0].startswith("without prefill context parallelism")
    assert answer["taken_for"].endswith("taken for newer than 0.33.0")
    text = bound("moe.triton", *argv).out
    assert "rule, not confirmed by a trace" in text
    assert "holds only\twithout prefill context parallelism" in text


def test_a_small_size_has_a_unit_that_shows_it(bound: Run) -> None:
    assert "1,024 bytes (1.00 KiB)" in bound("1024").out


MOE = ("max_num_batched_tokens=8192", "hidden_size=7168")


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        (["expert_parallel_size=16"], "expert_parallel_size 16 is no layout of vLLM"),
        (["sequence_parallel_size=8"], "sequence_parallel_size 8 is no layout of vLLM"),
        (
            ["unread_dispatch=1"],
            "holds only without DeepEP v2",
        ),
    ],
)
def test_an_impossible_layout_is_two_lines(bound: Run, layout: list[str], said: str) -> None:
    done = bound("moe.output_only", *settings(*MOE, *layout))
    assert (done.code, done.out, said in done.err) == (2, "", True)
    assert len(done.err.splitlines()) == 2


def test_enable_expert_parallel_makes_the_group_of_all_ranks(bound: Run) -> None:
    ranks = ["data_parallel_size=2", "tensor_parallel_size=8"]
    told = as_json(
        bound, "moe.output_only", *settings(*MOE, *ranks, "enable_expert_parallel=1")
    )
    same = as_json(bound, "moe.output_only", *settings(*MOE, *ranks, "expert_parallel_size=16"))
    assert told["bytes"] == same["bytes"] == 16 * 8192 * 7168 * 2
    assert any("DeepEP v2" in condition for condition in told["holds_only"])


WIDE = (*MOE, "data_parallel_size=2", "tensor_parallel_size=8", "enable_expert_parallel=1")
ROW = 7168 * 2


@pytest.mark.parametrize(
    ("backend", "tokens"),
    [
        ("allgather_reducescatter", 2 * 8192),  # each TP rank takes its part of the step
        ("deepep_high_throughput", 2 * 8192),
        ("flashinfer_all2allv", 16 * 8192),  # each of 16 ranks sends its whole step
        ("flashinfer_nvlink_two_sided", 16 * 8192),
    ],
)
def test_an_all2all_that_was_read_counts_its_rows(
    bound: Run, backend: str, tokens: int
) -> None:
    argv = settings(*WIDE, f"all2all_backend={backend}")
    assert as_json(bound, "moe.output_only", *argv)["bytes"] == tokens * ROW


@pytest.mark.parametrize(
    "backend", ["mori", "mori_low_latency", "deepep_v2", "moonep", "passthrough", "a_new_one"]
)
@pytest.mark.parametrize("rule", ["moe.output_only", "moe.triton", "moe.deep_gemm_routed"])
def test_one_that_was_not_read_is_refused(bound: Run, rule: str, backend: str) -> None:
    done = bound(rule, *settings(*WIDE, f"all2all-backend={backend}"))
    assert (done.code, done.out) == (2, "")
    assert "holds only without DeepEP v2" in done.err


@pytest.mark.parametrize(
    ("rule", "given", "said"),
    [
        ("moe.output_only", [*MOE, "all2all_backend=mori"], "is it on?"),
        ("moe.output_only", [*WIDE, "dtype=bfloat16"], "does not take dtype, a word"),
        ("turboquant.decode", ["all2all_backend=mori"], "does not take all2all_backend"),
        ("8 * rows", ["rows=1", "all2all_backend=mori"], "An expression does not take"),
        (
            "moe.output_only",
            [*WIDE, "all2all_backend=mori", "unread_dispatch=0"],
            "holds only without DeepEP v2",
        ),
    ],
)
def test_a_word_that_decides_nothing_is_two_lines(
    bound: Run, rule: str, given: list[str], said: str
) -> None:
    done = bound(rule, *settings(*given))
    assert (done.code, done.out, said in done.err) == (2, "", True)
    assert len(done.err.splitlines()) == 2


def test_a_model_config_does_not_hide_an_ignored_number(bound: Run, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"num_attention_heads": 16, "head_dim": 128}))
    argv = ["turboquant.continuation_prefill", "--model-config", str(path)]
    done = bound(*argv, *settings("decode_context_parallel_size=2"))
    assert (done.code, done.out) == (2, "")
    assert "does not take decode_context_parallel_size" in done.err


def test_a_release_before_the_rule_names_the_formula_taken(bound: Run) -> None:
    numbers = settings("max_model_len=1000")
    told = as_json(bound, "indexer.rocm_paged_logits", "--vllm", "0.21.0", *numbers)
    assert (
        told["taken_for"] == "the rule has no formula of vLLM 0.21.0: that of 0.24.0 was taken"
    )
    assert as_json(bound, "indexer.rocm_paged_logits", "--vllm", "0.24.0")["taken_for"] is None


def test_no_flag_is_called_idle_that_the_padded_rows_grow_with(bound: Run) -> None:
    for site in ("rocm_paged_logits", "rocm_paged_logits_stage1", "rocm_mxfp4"):
        assert "no lever\t--max-num-batched-tokens" not in bound(f"indexer.{site}").out
