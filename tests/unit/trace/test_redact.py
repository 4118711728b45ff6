"""Secrets in command lines and text."""

from __future__ import annotations

import pytest

from wstrace.trace.redact import redact_argv, redact_text

SECRET = "S3cr3tV4lue"


@pytest.mark.parametrize(
    "argv",
    [
        ["--api-key", SECRET],
        ["--api-key", "first", SECRET],
        [f"--api-key={SECRET}"],
        ["--hf-token", SECRET],
        ["--token", SECRET],
        ["--hf_token", SECRET],
        [f"--header=Authorization: Bearer {SECRET}"],
        ["--ssl-keyfile-password", SECRET],
        ["--model-loader-extra-config", f'{{"api_key": "{SECRET}"}}'],
        [f"https://user:{SECRET}@host/path"],
        [f"s3://bucket/x?X-Amz-Signature={SECRET}&a=b"],
        [f"https://host/x?token={SECRET}"],
        [f"hf_{SECRET}abc"],
        [f"sk-{SECRET}"],
    ],
)
def test_a_secret_on_the_command_line_is_gone(argv: list[str]) -> None:
    assert SECRET not in " ".join(redact_argv(["vllm", "serve", "m", *argv]))


def test_what_people_need_stays() -> None:
    argv = [
        *("vllm", "serve", "org/model", "--tokenizer", "t", "--tokenizer-mode", "auto"),
        *("--max-num-batched-tokens", "8192", "--port", "8000", "--max-tokens", "5"),
        *("--kv-cache-dtype", "turboquant_4bit_nc"),
    ]
    assert redact_argv(argv) == argv


def test_a_secret_flag_hides_no_later_option() -> None:
    words = redact_argv(["--api-key", SECRET, "--port", "8000"])
    assert words == ["--api-key", "[redacted]", "--port", "8000"]


def test_text_keeps_its_other_words() -> None:
    text = redact_text(f"connecting with api_key={SECRET} to host")
    assert text == "connecting with api_key=[redacted] to host"
