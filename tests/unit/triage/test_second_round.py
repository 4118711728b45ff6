"""Kinds of texts that were read wrongly once, each with the right answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.triage.generator import FORMATS, Failure, log_lines, read
from wstrace.errors import WstraceError
from wstrace.findings.finding import Finding
from wstrace.triage.diagnose.numbers import Given

NO_GROWTH = "Workspace growth is not allowed after locking."
FRAME = '  File "/x/vllm/{}", line {}, in {}'
ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 26.21 GiB. GPU 0 has"
V2 = "vllm/v1/worker/gpu/model_runner.py"


def _only(text: str) -> Finding:
    (finding,) = read(text).findings
    return finding


def _sizes(finding: Finding) -> tuple[str | None, str | None]:
    assert finding.log is not None
    return finding.log.required_text, finding.log.current_text


def test_a_sentence_names_the_function_that_the_message_lacks() -> None:
    finding = _only(
        "the first decode dies in _decode_attention: Workspace is locked but allocation "
        "requires 1.25 MB, current size 0.00 MB"
    )
    assert _sizes(finding) == ("1.25 MB", "0.00 MB")
    assert (finding.function, finding.code) == ("_decode_attention", "WS101")
    assert finding.log is not None
    assert finding.log.confidence != "certain"


@pytest.mark.parametrize(
    ("words", "had"),
    [
        (", locked size is 0.88 MB", "0.88 MB"),
        (", locked size 2.06 MB", "2.06 MB"),
        (" (had 0.88 MB)", "0.88 MB"),
        (" - locked at 0.88 MB", "0.88 MB"),
        (", but has only 0.88 MB", "0.88 MB"),
        (", current size: 1.50 MB", "1.50 MB"),
    ],
)
def test_the_arena_in_other_words(words: str, had: str) -> None:
    site = "turboquant_attn.py:747:_continuation_prefill"
    text = f"Workspace is locked but allocation from '{site}' requires 2.50 MB{words}"
    assert _sizes(_only(text)) == ("2.50 MB", had)


@pytest.mark.parametrize("gap", ["...", "…", "<...>", "[...]", "from ...", "from '...'"])
def test_a_caller_left_out(gap: str) -> None:
    finding = _only(
        f"Workspace is locked but allocation {gap} requires 17.20 MB, "
        f"current size is 11.00 MB. {NO_GROWTH}"
    )
    assert _sizes(finding) == ("17.20 MB", "11.00 MB")
    assert finding.file == ""


def test_a_caller_and_two_sizes_are_no_denial() -> None:
    finding = _only(
        "crash at turboquant_attn.py:7:_continuation_prefill, requires 18.00 MB, "
        "locked size 2.06 MB"
    )
    assert _sizes(finding) == ("18.00 MB", "2.06 MB")
    assert finding.site == "turboquant_attn.py:_continuation_prefill"
    assert finding.log is not None
    assert finding.log.confidence == "likely"


@pytest.mark.parametrize(
    "caller",
    [
        ("flash_attn.py", 1027, "_forward_with_dcp"),
        ("modular_kernel.py", 9, "_allocate_buffers"),
    ],
)
def test_an_empty_arena_was_asked_for_nothing(caller: tuple[str, int, str]) -> None:
    finding = _only(Failure(*caller, 8.0, 0.0).message)
    assert finding.code in ("WS101", "WS104")
    assert finding.log is not None
    assert "smaller shape" not in finding.log.why


def test_a_caller_without_a_line_and_round_sizes_is_an_example() -> None:
    finding = _only(
        "Workspace is locked but allocation from 'turboquant_attn.py:_continuation_prefill' "
        f"requires 16.00 MB, current size is 2.00 MB. {NO_GROWTH}"
    )
    assert finding.log is not None
    assert finding.log.confidence == "possible"


def _traceback(*frames: tuple[str, int, str], last: str) -> str:
    lines = ["Traceback (most recent call last):"]
    lines += [FRAME.format(*frame) for frame in frames]
    return "\n".join(log_lines([*lines, last], "Worker_TP0 pid=9"))


def test_memory_that_runs_out_in_profiling_is_cured_by_no_reserve() -> None:
    finding = _only(
        _traceback(
            ("v1/worker/gpu_worker.py", 430, "determine_available_memory"),
            ("model_executor/layers/fused_moe/modular_kernel.py", 12, "_allocate_buffers"),
            ("v1/worker/workspace.py", 207, "_ensure_workspace_size"),
            last=OOM,
        )
    )
    assert finding.log is not None
    assert "--max-num-batched-tokens" in finding.log.commands[0]
    assert not any("reserve" in command for command in finding.log.commands)
    assert "KV sizing has not happened" in finding.log.why


@pytest.mark.parametrize(
    ("path", "function"),
    [
        ("v1/worker/gpu_worker.py", "profile_run"),
        ("v1/worker/gpu_worker.py", "capture_model"),
        ("v1/worker/gpu_worker.py", "load_model"),
    ],
)
def test_no_serving_graph_replays_in_start_up(path: str, function: str) -> None:
    runner = ("v1/worker/gpu/model_runner.py", 900, "execute_model")
    assert read(_traceback((path, 1, function), runner, last=ILLEGAL)).findings == []
    assert _only(_traceback(runner, last=ILLEGAL)).code == "WS301"


def test_no_graph_replays_in_eager_mode() -> None:
    runner = ("v1/worker/gpu/model_runner.py", 900, "execute_model")
    config = (
        "INFO 08-12 10:00:00 [core.py:93] Initializing a V1 LLM engine (v0.27.1) with config: "
        "model='m', max_seq_len=4096, enforce_eager={}, tensor_parallel_size=1"
    )
    for eager, found in ((True, 0), (False, 1)):
        lines = log_lines([config.format(eager)], "Worker_TP0 pid=9")
        text = "\n".join([*lines, _traceback(runner, last=ILLEGAL)])
        assert len(read(text).findings) == found


@pytest.mark.parametrize("name", ["utf-16-le", "utf-16-be", "utf-16"])
def test_utf_16_with_and_without_its_mark(name: str) -> None:
    finding = _only_bytes("\n".join(Failure().traceback()).encode(name))
    assert _sizes(finding) == ("16.00 MB", "1.02 MB")


def _only_bytes(data: bytes) -> Finding:
    (finding,) = read(data).findings
    return finding


def test_a_hybrid_model_of_unknown_block_size_counts_its_largest() -> None:
    """Of the divisors of 4128 in steps of 16, 2064 and its like need most: 64 blocks of 2064
    tokens hold 131071, and 64 * 2064 * 512 * 2 * 2 bytes are 270,532,608."""
    if CASES is None:
        pytest.skip("the texts are not beside this checkout")
    found = read((CASES / "hybrid-block-unknown.log").read_bytes()).findings
    assert found
    for finding in found:
        assert finding.bound is not None
        assert (finding.bound.bytes, finding.bound.grade) == (270_532_608, "fitted")
        assert "Setting attention block size" in finding.bound.why


@pytest.mark.parametrize(
    "said",
    [
        "It works fine with `--enforce-eager`.",
        "I tried --max-num-seqs 8 and it helped",
        "Workaround: max_num_batched_tokens=2048",
        "with --max-model-len 4096 the crash disappears",
        "Setting `--enforce-eager` makes the error go away",
        "no crash with --max-num-seqs 8",
        "--max-model-len 4096 is stable here",
        "With --max-num-batched-tokens 2048 it does not happen",
        "I suspect --max-num-seqs 8 matters.",
        "Would --max-num-batched-tokens 4096 be enough?",
        "Using `--enforce-eager` as a temporary measure.",
        "You could lower `--max-num-seqs 8`, or set max_num_batched_tokens=2048",
        "I tried the following\n--max-num-seqs 8 here\nand it helped",
        "This works:\n```\nvllm serve m --max-num-seqs 8 --enforce-eager\n```",
        "加上 --enforce-eager 就好了",
        "One could reduce memory with\n--max-num-seqs 8 perhaps",
    ],
)
def test_what_works_is_no_setting_of_what_failed(said: str) -> None:
    text = f"{said}\n\nvllm serve m --max-model-len 32768\n\n{Failure().message}"
    assert read(text).config == {"max_model_len": 32768}


@pytest.mark.parametrize(
    "said",
    [
        "I start the server with --max-num-seqs 8.",
        "Flags: --max-num-seqs 8",
        "- --max-num-seqs 8",
        "args: [--max-num-seqs, '8']",
        "TP 2, --max-num-seqs 8",
        "This works on 0.20 but crashes on 0.21:\nvllm serve m --max-num-seqs 8",
        "参数：--max-num-seqs 8",
        "The server crashes when started with --max-num-seqs 8",
    ],
)
def test_a_stated_setting_of_the_failing_run(said: str) -> None:
    assert read(f"{said}\n\n{Failure().message}").config == {"max_num_seqs": 8}


def test_a_command_line_after_a_word_of_trying_counts() -> None:
    text = f"I tried: vllm serve m --max-num-seqs 8\n{Failure().message}"
    assert read(text).config == {"max_num_seqs": 8}


BLOCK = (
    "INFO 05-11 14:00:02 [config.py:312] Setting attention block size to 2064 tokens to ensure "
    "that attention page size is >= mamba page size."
)


def test_a_block_size_that_the_log_contradicts_is_an_error() -> None:
    text = "\n".join(log_lines([BLOCK, *Failure().traceback()], "EngineCore pid=1"))
    with pytest.raises(WstraceError, match="block_size=16 contradicts the log") as refused:
        read(text, Given({"block_size": 16}))
    assert "Leave --set block_size out" in str(refused.value.hint)
    assert read(text, Given({"block_size": 2064})).findings


ROOT = Path(__file__).parents[3]
CASES = next(ROOT.parent.glob("*/cases-2"), None)


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("arena-oom-in-profile", ["WS201"]),
        ("kernel-scratch-oom", []),
        ("illegal-access-eager", []),
        ("illegal-access-in-capture", []),
        ("illegal-access-in-profile", []),
        ("utf16-no-bom", ["WS101"]),
        ("interleaved-wrapped", ["WS101"]),
    ],
)
def test_the_texts_themselves(name: str, codes: list[str]) -> None:
    if CASES is None:
        pytest.skip("the texts are not beside this checkout")
    found = read((CASES / f"{name}.log").read_bytes()).findings
    assert sorted({finding.code for finding in found}) == codes


def _interleaved(sizes: list[tuple[float, float]], width: int) -> str:
    """Messages of several ranks, each wrapped at `width`, their pieces in turns."""
    rows = []
    for rank, (asked, had) in enumerate(sizes):
        text = Failure(required=asked, current=had).message
        prefix = f"(Worker_TP{rank} pid={400 + rank}) ERROR 05-11 14:02:31 [x.py:9] "
        pieces = [text[at : at + width] for at in range(0, len(text), width)]
        rows.append([prefix + pieces[0], *pieces[1:]])
    return "\n".join(piece for turn in zip(*rows, strict=True) for piece in turn)


@pytest.mark.parametrize("form", ["plain", "compose", "cri", "kubectl", "ansi"])
@pytest.mark.parametrize("width", [120, 75, 60, 45, 35])
def test_ranks_that_are_mixed_inside_a_message(width: int, form: str) -> None:
    text = _interleaved([(16.12, 0.76), (8.06, 0.76), (12.09, 0.76)], width)
    found = read("\n".join(FORMATS[form](text.split("\n"))))
    (finding,) = found.findings
    assert _sizes(finding) == ("16.12 MB", "0.76 MB")
    assert finding.site == "turboquant_attn.py:_continuation_prefill"
    assert finding.ranks == ()
    assert found.notes == [
        "lines of several processes are mixed inside a message: it is given no rank"
    ]


def test_a_piece_goes_to_the_one_message_that_is_open() -> None:
    cut = Failure(required=8.06, current=0.76).message
    lines = [
        f"(Worker_TP1 pid=402) ERROR 05-11 14:02:31 [x.py:9] {cut[:60]}",
        "(Worker_TP0 pid=401) INFO 05-11 14:02:31 [x.py:9] Engine 000: all is well",
        cut[60:],
    ]
    finding = _only("\n".join(lines))
    assert _sizes(finding) == ("8.06 MB", "0.76 MB")
    assert [rank.tp for rank in finding.ranks] == [1]


DOCSTRING = '''def retry(call):
    """Try once more.

    vLLM says "{message}"
    when a layer asks late.
    """
    return call()
'''


@pytest.mark.parametrize(
    "text",
    [
        DOCSTRING,
        'class Retry:\n    r"""Raised as {message}"""\n',
        '"""A module on {message}"""\nimport os\n',
        "    '''\n    {message}\n    '''\n",
    ],
)
def test_a_docstring_quotes_and_says_so(text: str) -> None:
    finding = _only(text.format(message=Failure().message))
    assert finding.severity == "note"
    assert finding.log is not None
    assert finding.log.confidence == "possible"
    assert "quoted in a docstring" in finding.log.why


@pytest.mark.parametrize("fence", ['"""', "'''"])
def test_a_fence_of_quotes_is_no_docstring(fence: str) -> None:
    finding = _only(f"The log:\n{fence}\nERROR: {Failure().message}\n{fence}\n")
    assert finding.severity == "error"


def test_a_closed_docstring_quotes_nothing_below_it() -> None:
    lines = log_lines(Failure().traceback(), "EngineCore pid=1")
    finding = _only("\n".join(['    """Our own worker."""', "", *lines]))
    assert finding.severity == "error"


def test_a_caller_without_its_line_is_not_as_vllm_prints_it() -> None:
    finding = _only(
        "AssertionError: Workspace is locked but allocation from "
        "'turboquant_attn.py:_continuation_prefill' requires 17.21 MB, current size is "
        f"2.06 MB. {NO_GROWTH}"
    )
    assert finding.log is not None
    assert finding.log.confidence == "likely"
