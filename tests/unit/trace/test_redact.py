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


NAMES = [
    *("api_key", "api-key", "API_KEY", "apiKey", "password", "Password", "db_passwd", "pwd"),
    *("token", "hf_token", "HF_TOKEN", "access-token", "accessToken", "bearer_token"),
    *("aws_secret_access_key", "client_secret", "Authorization", "proxy-authorization"),
    *("credentials", "private_key", "passphrase", "x-api-key", "auth", "Cookie"),
]
SPELLINGS = [
    *("{}={}", "{} = {}", "{}: {}", "{}:{}", "{}=>{}", "{}='{}'", '{}="{}"', "{}=['{}', 'b']"),
    *("{{'{}': '{}', 'a': 'b'}}", "{{'{}': ['{}'], 'a': 1}}", "{{'{}': ('x', '{}')}}"),
    *('{{"{}":"{}","a":"b"}}', '{{"{}": ["a", "{}"]}}', '{{\\"{}\\": \\"{}\\", \\"a\\": 1}}'),
    *("('{}', '{}')", "(b'{}', b'{}')", "Namespace({}=['{}'], port=8000)", "C({}={}, a=1)"),
    *("{}: Bearer {}", "{}: Basic {}", "{{'{}': 'Bearer {}'}}", "headers['{}'] = '{}'"),
    *("--{} {}", "--{}={}", "run --{} a {} --port 1", "['--{}', 'a', '{}', '--port', '1']"),
    *(
        "{}=SecretStr('{}')",
        "{{'{}': {{'a': {{'b': 1}}, 'c': '{}'}}}}",
        "{}='it\\'s {}'",
        "{}='{}",
    ),
    "1 validation error\n{}\n  Not valid [type=bool_parsing, input_value='{}', input_type=str]",
]


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("name", NAMES)
def test_a_value_beside_a_secrets_name_is_gone(name: str, spelling: str) -> None:
    text = redact_text("ValueError: " + spelling.format(name, SECRET))
    assert SECRET not in text
    assert name in text
    assert redact_text(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "max_num_batched_tokens=2048",
        "num_tokens: 5",
        "tokenizer='x', tokenizer_mode='auto'",
        "{'max_tokens': 5, 'token_ids': [1, 2, 3]}",
        "eos_token='</s>', pad_token: 'p', image_token=7",
        "token: 151645",
        "dynamic_per_token=True",
        "api_key=None, hf_token=True, password: null",
        "api_key=''",
        "author: me, authentication failed: no",
        "kv_cache_key=3, key: value, 'keys': ['a']",
        "--max-tokens 5 --tokenizer t --stop-token 2",
        "the tokens, a token and its password",
        "Basic authentication is off; Bearer tokens only",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact_text(text) == text


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("{'api_key': ['k'], 'port': 1}", "{'api_key': [redacted], 'port': 1}"),
        (
            "{'a': {'password': {'x': {'y': 1}}, 'b': 2}}",
            "{'a': {'password': [redacted], 'b': 2}}",
        ),
        ("Namespace(api_key=['k]', 'l'], p=1)", "Namespace(api_key=[redacted], p=1)"),
        ("f(token=abc, size=2)", "f(token=[redacted], size=2)"),
        ('{"secret":"a\\"b","c":"d"}', '{"secret":"[redacted]","c":"d"}'),
        ("Authorization: Basic dXNlcjpwdw== to host", "Authorization: [redacted] to host"),
        (
            "curl -H 'Authorization: Bearer k' http://h",
            "curl -H 'Authorization: [redacted]' http://h",
        ),
        ("sent Bearer abc123 to h", "sent Bearer [redacted] to h"),
        ("--api-key k1 k2 --port 1", "--api-key [redacted] --port 1"),
    ],
)
def test_only_the_value_goes(text: str, left: str) -> None:
    assert redact_text(text) == left
