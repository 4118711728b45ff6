"""Version, flags and model numbers out of a text, and which of several holds."""

from __future__ import annotations

import pytest

from tests.unit.triage.generator import Failure, log_lines, log_of, read, wrapped
from wstrace.versions import CHECKED_WITH

ENGINE = (
    "Initializing a V1 LLM engine (v{version}) with config: model='m', "
    "speculative_config=SpeculativeConfig(method='mtp', num_spec_tokens=3), "
    "dtype=torch.bfloat16, max_seq_len={length}, tensor_parallel_size=4, "
    "pipeline_parallel_size=1, data_parallel_size=2, enforce_eager=False, "
    "kv_cache_dtype=turboquant_4bit_nc, enable_prefix_caching=True, "
    "enable_chunked_prefill=True, compilation_config={{'cudagraph_mode': "
    "<CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>, 'cudagraph_capture_sizes': [1, 2, 4, 8], "
    "'max_cudagraph_capture_size': 8}}"
)


def _engine(version: str = "0.21.0", length: int = 32768) -> str:
    return ENGINE.format(version=version, length=length)


@pytest.mark.parametrize("width", [10_000, 100, 79, 63])
def test_config_dump(width: int) -> None:
    config = read("\n".join(wrapped(log_lines([_engine()], "EngineCore pid=2"), width))).config
    assert config["vllm_version"] == "0.21.0"
    assert config["max_model_len"] == 32768
    assert config["tensor_parallel_size"] == 4
    assert config["data_parallel_size"] == 2
    assert config["cache_dtype"] == "turboquant_4bit_nc"
    assert config["dtype"] == "bfloat16"
    assert config["num_speculative_tokens"] == 3
    assert config["enable_chunked_prefill"] is True
    assert config["enforce_eager"] is False
    assert config["cudagraph_mode"] == "FULL_AND_PIECEWISE"
    assert config["cudagraph_capture_sizes"] == [1, 2, 4, 8]


def test_non_default_args() -> None:
    line = (
        "non-default args: {'model': 'm', 'max_model_len': 4096, 'max_num_seqs': 8, 'port': 1}"
    )
    config = read(line).config
    assert (config["max_model_len"], config["max_num_seqs"]) == (4096, 8)


# vLLM 0.13.0 to 0.33.0: EngineCore's config; a dump after a failure; the API server's flags
DUMP = "Initializing a V1 LLM engine (v{}) with config: model={}, speculative_config={}, seed=0"
NO_DRAFT = "None"
DRAFT = "SpeculativeConfig(method='eagle', model='org/draft', num_spec_tokens=3)"


@pytest.mark.parametrize("width", [10_000, 79, 50])
@pytest.mark.parametrize(
    ("line", "model"),
    [
        (DUMP.format("0.13.0", "'Qwen/Qwen3-8B'", NO_DRAFT), "Qwen3-8B"),
        (DUMP.format("0.22.1", "'/srv/models/q3'", DRAFT), "q3"),
        (DUMP.format("0.33.0", "'/srv/models/q3/'", DRAFT), "q3"),
        (DUMP.format("0.30.0", '"m"', NO_DRAFT), "m"),
        (DUMP.format("0.30.0", "'C:\\\\models\\\\q3'", NO_DRAFT), "q3"),
        (DUMP.format("0.30.0", "'s3://bucket/q3'", NO_DRAFT), "q3"),
        (
            "Dumping input data for V1 LLM engine (v0.14.1) with config: model='org/ds', "
            "max_seq_len=163840",
            "ds",
        ),
        ("non-default args: {'model_tag': 'org/m', 'model': 'org/m', 'port': 1}", "m"),
        (
            "non-default args: {'speculative_config': {'model': 'org/draft', 'n': 2}, "
            "'model': 'org/main', 'served_model_name': ['short']}",
            "main",
        ),
        ("non-default args: {'served_model_name': ['short'], 'port': 1}", None),
        ("non-default args: {'speculative_config': {'model': 'org/draft'}}", None),
        ("Initializing a V1 LLM engine (v0.21.0) with config: seed=0, other_model='m'", None),
        ("Initializing a V1 LLM engine (v0.21.0) with config: model='org/cut-o", None),
    ],
)
def test_the_models_base_name(line: str, model: str | None, width: int) -> None:
    text = "\n".join(wrapped(log_lines([line], "EngineCore pid=2"), width))
    assert read(text).config.get("model") == model


def test_the_engines_word_for_its_model_is_above_the_flags() -> None:
    flags = "non-default args: {'model': 'org/asked'}"
    told = read(f"{DUMP.format('0.32.0', repr('/cache/resolved'), NO_DRAFT)}\n{flags}").config
    assert told["model"] == "resolved"


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("vllm serve m --max-model-len 131072 --max-num-seqs 4 2>&1", "max_num_seqs", 4),
        ("vllm serve m --max-model-len=64k", "max_model_len", 64_000),
        ("vllm serve m --max-model-len 64K", "max_model_len", 65_536),
        ("vllm serve m --max-model-len 25.6k", "max_model_len", 25_600),
        ("vllm serve m --max-model-len auto", "max_model_len", None),
        ("vllm serve m --max-model-len -1", "max_model_len", None),
        ("(vllm serve m --max-num-seqs 8)", "max_num_seqs", 8),
        ("max-model-len: 25.6k", "max_model_len", 25_600),
        ("vllm serve m \\\n  --max-num-seqs \\\n  8", "max_num_seqs", 8),
        ('args: ["--max-num-seqs", "24", "--model", "m"]', "max_num_seqs", 24),
        ("  - --max-num-seqs\n  - '24'\n", "max_num_seqs", 24),
        ("vllm serve m --enforce-eager --port 1", "enforce_eager", True),
        ("vllm serve m --no-enable-prefix-caching", "enable_prefix_caching", False),
        ("vllm serve m --kv-cache-dtype fp8", "cache_dtype", "fp8"),
        ("vllm serve m -tp 8", "tensor_parallel_size", 8),
        ("vllm serve m -tp=8", "tensor_parallel_size", 8),
        ("vllm serve m -tp8", "tensor_parallel_size", 8),
        ('args: ["-tp", "8"]', "tensor_parallel_size", 8),
        ("vllm serve m -dpl 4", "data_parallel_size", None),
        ("LLM(model='m', max_model_len=4096)", "max_model_len", 4096),
        ("max-model-len: 131072", "max_model_len", 131_072),
        (
            "--speculative-config '{\"method\":\"mtp\",\"num_speculative_tokens\":3}'",
            "num_speculative_tokens", 3,
        ),
        ("VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE=9", "flashinfer_workspace_bytes", 9),
        ("INFO [model.py:1] Using max model len 32768", "max_model_len", 32_768),
        ("Setting attention block size to 2080 tokens to ensure", "block_size", 2080),
    ],
)  # fmt: skip
def test_one_setting(text: str, name: str, value: object) -> None:
    assert read(text).config.get(name) == value


UNREAD = "is no number that vLLM reads"


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("--max-num-seqs 25.6K", ["--max-num-seqs 25.6K"]),
        ("--max_num_seqs=8x", ["--max_num_seqs 8x"]),
        ("--max-num-seqs -8", ["--max-num-seqs -8"]),
        ("-tp 2x", ["-tp 2x"]),
        ("--max-num-seqs 8x --max-num-seqs 8", []),
        ("--max-model-len auto --max-num-seqs 1.5k", []),
        ("--max-model-len -1", []),
        ("--max-num-seqs is what you want", []),
    ],
)
def test_a_flag_of_a_log_that_is_no_number_is_named(command: str, told: list[str]) -> None:
    notes = read(f"vllm serve m {command}\n{Failure().message}").notes
    assert [note.split(" in the text")[0] for note in notes if UNREAD in note] == told
    assert all("--set " in note for note in notes if UNREAD in note)


HEAD = "(APIServer pid=7) INFO 05-05 14:00:00 "
SAID_BY_VLLM = [
    "vLLM API server version {}",
    HEAD
    + "[api_server.py:9] vLLM API server version {}\n"
    + HEAD
    + "[a.py:1] args: Namespace()",
    HEAD + "[api_server.py:9] vLLM API server version {} args: Namespace()",
    HEAD + "[api_utils.py:325] vLLM server version {}, serving model m",
    "[utils.py:306]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version {}",
    "[utils.py:306]  ▄▄ ▄█ █ ▀▄▀ █\x1b[0m  version \x1b[1m{}\x1b[0m\n  █▄█▀ █  model   m",
    "vLLM Version                 : {}",
    ENGINE.replace("{version}", "{}").replace("{length}", "8"),
]
SAID_BY_PEOPLE = [
    "pip install vllm=={}",
    "image: vllm/vllm-openai:v{}",
    "We run vLLM {} on two GPUs.",
    "It dies on {} with two GPUs.",
]
BUILDS = [
    "0.21.0",
    "0.23.1rc1.dev7+g4845aee.cu130",
    "0.1.dev12345+gabcdef0.d20260101",
    "0.22.0.post1",
]


@pytest.mark.parametrize("version", BUILDS)
@pytest.mark.parametrize("text", [*SAID_BY_VLLM, *SAID_BY_PEOPLE])
def test_version(text: str, version: str) -> None:
    assert read(text.format(version)).config["vllm_version"] == version


@pytest.mark.parametrize("text", SAID_BY_VLLM)
def test_a_build_without_a_version_is_newer_than_every_release(text: str) -> None:
    for version in ("0.1.dev12345+gabcdef0", "dev"):
        told = read(f"{text.format(version)}\n{Failure().message}")
        assert told.config["vllm_version"] == version
        assert f"{version} names no release: taken for newer than {CHECKED_WITH}" in told.notes


@pytest.mark.parametrize(
    "text",
    [
        "NCCL version 2.21.5+cuda12.4",
        "Python version 3.11.9",
        "vLLM developers say",
        "vLLM dev builds",
        "vLLM 0.21 is old",
        "version development",
    ],
)
def test_no_version_of_vllm(text: str) -> None:
    assert "vllm_version" not in read(text).config


def test_development_version() -> None:
    config = read(_engine("0.20.2rc1.dev35+g4845aee6b")).config
    assert config["vllm_version"] == "0.20.2rc1.dev35+g4845aee6b"


def test_the_dump_beats_the_prose() -> None:
    text = f"vllm serve m --max-model-len 1000\n{_engine()}\nso set max_model_len=5"
    assert read(text).config["max_model_len"] == 32768


def test_after_a_restart_the_last_dump_before_the_failure_holds() -> None:
    lines = [
        *log_lines([_engine(length=1024)], "EngineCore pid=1"),
        *log_lines([_engine(length=2048)], "EngineCore pid=2"),
        *log_lines(Failure().traceback(), "EngineCore pid=2"),
        *log_lines([_engine(length=4096)], "EngineCore pid=3"),
    ]
    found = read("\n".join(lines))
    assert found.config["max_model_len"] == 2048
    assert log_of(found.findings[0]).numbers["max_model_len"] == 2048


def test_a_quoted_model_config_gives_per_rank_numbers() -> None:
    quoted = """
    {
      "num_attention_heads": 32, "num_key_value_heads": 8,
      "head_dim": 128, "hidden_size": 4096, "rope_theta": 1000000.0
    }
    """
    found = read(quoted + "\nvllm serve m -tp 2 --max-model-len 4096\n" + Failure().message)
    numbers = log_of(found.findings[0]).numbers
    assert (numbers["num_kv_heads"], numbers["num_attention_heads"]) == (4, 16)
    assert numbers["head_size"] == 128
    assert set(found.config) == {"tensor_parallel_size", "max_model_len"}


def test_a_quoted_model_config_without_parallel_size_counts_for_nothing() -> None:
    quoted = '{"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}'
    assert log_of(read(quoted + "\n" + Failure().message).findings[0]).numbers == {}


def test_unknown_is_absent() -> None:
    assert read(Failure().message).config == {}


@pytest.mark.parametrize(
    ("version", "notes"),
    [
        ("0.28.0", ()),
        ("0.1.dev9+g48", ("0.1.dev9+g48 names no release: taken for newer than 0.33.0",)),
    ],
)
def test_a_build_that_names_no_release_is_said_to_be_taken_for_the_newest(
    version: str, notes: tuple[str, ...]
) -> None:
    refusal = (
        "AssertionError: Workspace is locked but allocation from "
        "'turboquant_attn.py:747:_continuation_prefill' requires 9.94 MB, current size is "
        "2.05 MB. Workspace growth is not allowed after locking."
    )
    report = read(f"{_engine(version)}\n{refusal}")
    assert tuple(report.notes) == notes
