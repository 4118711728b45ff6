"""One grammar of `--set` in every command."""

from __future__ import annotations

import pytest

from wstrace.cli.settings import settings
from wstrace.errors import WstraceError


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("max_model_len=32768", 32768),
        ("max-model-len=32_768", 32768),
        ("max_model_len=64k", 64_000),
        ("max_model_len=64K", 65_536),
        ("max_model_len=25.6k", 25_600),
        ("max_model_len=1m", 1_000_000),
        ("kv_cache_memory_bytes=8GiB", 8_589_934_592),
        ("kv-cache-memory-bytes = 8 GB", 8_589_934_592),
        ("num_kv_heads=4.0", 4),
        ("max_cudagraph_capture_size=0", 0),
        ("num_speculative_tokens=0", 0),
        ("enable_expert_parallel=0", 0),
        ("mine=-3", -3),
    ],
)
def test_a_number_is_read_as_vllm_reads_it(text: str, number: int) -> None:
    ((name, value),) = settings([text], "a=1").items()
    assert value == number
    assert name == text.partition("=")[0].strip().replace("-", "_")


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (["block_size=0"], "block_size is 1 or more"),
        (["num-speculative-tokens=-1"], "num_speculative_tokens is 0 or more"),
        (["max_model_len=1.5"], "not a whole number"),
        (["max_model_len=25.6K"], "not a whole number"),
        (["max_model_len=64q"], "not a whole number"),
        (["max_model_len=" + "9" * 21], "not a whole number"),
        (["max_model_len=²"], "not a whole number"),
        (["max-model-len=1", "max_model_len=2"], "gives max_model_len twice: 1 and 2"),
        (["all2all_backend=a b"], "not a word"),
        (["all2all-backend=mori", "all2all_backend=naive"], "twice: mori and naive"),
        (["max_model_len"], "not NAME=VALUE"),
    ],
)
def test_what_is_no_setting_of_a_config_is_refused(texts: list[str], told: str) -> None:
    with pytest.raises(WstraceError, match=told):
        settings(texts, "a=1")


@pytest.mark.parametrize("first", ["max-num-seqs=1k", "max_num_seqs=1k"])
def test_one_name_may_be_given_twice_alike(first: str) -> None:
    assert settings([first, "max_num_seqs=1000"], "a=1") == {"max_num_seqs": 1000}


def test_what_is_a_word_in_vllms_config_is_one_here() -> None:
    given = settings(["all2all-backend=deepep_low_latency", "top_k=8"], "a=1")
    assert given == {"all2all_backend": "deepep_low_latency", "top_k": 8}
