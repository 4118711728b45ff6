"""Secrets in command lines and text."""

from __future__ import annotations

import time

import pytest

from wstrace.safe_texts.redact import redact_argv, redact_text

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


FLAGS = [
    *("--api-k", "--api-ke", "--api_k", "--hf-t", "--hf-tok", "--hf_toke", "--passw"),
    *("--ssl-keyfile-", "--ssl-keyfile-p", "--ssl-keyfile-pass", "--openai-api-k"),
]


@pytest.mark.parametrize("given", ["{} {}", "{}={}", "{} -{}", "{} '{}'"])
@pytest.mark.parametrize("flag", FLAGS)
def test_the_beginning_of_a_secret_option_is_known(flag: str, given: str) -> None:
    text = given.format(flag, SECRET)
    words = text.replace("'", "").split()
    for shown in (
        redact_text(f"vllm {text} --port 1"),
        redact_text(f"vllm {text}"),
        redact_text(repr([*words, "--port", "1"])),
        " ".join(redact_argv([*words, "--port", "1"])),
    ):
        assert SECRET not in shown
        assert flag in shown


@pytest.mark.parametrize(
    "end", ["", " --port 1", " -tp 2", "\nnext line", " && ls", "' failed"]
)
@pytest.mark.parametrize(
    "keys", [f"--api-key a b {SECRET}", f"--api-key=a {SECRET}", f"--api-k a -{SECRET} b"]
)
def test_all_keys_up_to_the_next_option_or_the_end_are_gone(keys: str, end: str) -> None:
    text = redact_text("'" * end.startswith("'") + f"vllm serve m {keys}{end}")
    assert SECRET not in text
    assert text.endswith(end)


def test_of_a_list_of_words_all_keys_are_gone() -> None:
    words = ["--api-key=a", SECRET, "-" + SECRET, "--port", "1"]
    assert redact_argv(words) == ["--api-key=[redacted]", *["[redacted]"] * 2, "--port", "1"]
    assert (
        redact_text(repr(words))
        == "['--api-key=[redacted]', '[redacted]', '[redacted]', '--port', '1']"
    )


def test_a_model_after_a_whole_key_stays() -> None:
    words = ["vllm", "serve", "--api-key=a", "org/model", "-tp", "2"]
    assert redact_argv(words) == ["vllm", "serve", "--api-key=[redacted]", *words[3:]]


@pytest.mark.parametrize("login", [["-u"], ["-sSu"], ["--user"], ["--proxy-user"]])
def test_a_login_of_curl_is_gone(login: list[str]) -> None:
    words = ["curl", *login, f"me:{SECRET}", "http://h"]
    assert redact_argv(words) == ["curl", *login, "me:[redacted]", "http://h"]
    for text in (" ".join(words), repr(words), f"{login[0]}='me:{SECRET}'", f"-ume:{SECRET}"):
        assert SECRET not in redact_text(text)


PEM = (
    f"-----BEGIN RSA PRIVATE KEY-----\nMII+{SECRET}/a\n{SECRET}=\n-----END RSA PRIVATE KEY-----"
)


@pytest.mark.parametrize(
    "text",
    [
        *(f"github_pat_11A_{SECRET}", f"dckr_pat_{SECRET}", f"pypi-AgEIcHlwaS5{SECRET}"),
        *(
            f"AIzaSyA12345678{SECRET}",
            f"glpat-{SECRET}",
            f"xoxp-1-{SECRET}",
            f"npm_a1b2c3{SECRET}",
        ),
        f"eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM.{SECRET}",
        *(PEM, PEM.replace("\n", "\\n"), PEM[:60], PEM.partition("-----END")[0]),
        *(
            f"SharedAccessSignature={SECRET};a=b",
            f"SharedAccessSignature sr=a&sig={SECRET}&se=1",
        ),
        *(f"https://h/b?sv=1&sig={SECRET}", f"sig={SECRET}&se=1", f"X-Amz-Signature={SECRET}"),
        *(
            f"postgresql://u:p@{SECRET}@h/db",
            f"postgresql://u:{SECRET}@x@h",
            f"//me:{SECRET}@h/x",
        ),
        *(
            f"HUGGING_FACE_HUB_TOKEN {SECRET}",
            f"ENV HF_TOKEN {SECRET}",
            f"set -x HF_TOKEN {SECRET}",
        ),
        *(f"export HF_TOKEN={SECRET}", f'HF_TOKEN: "{SECRET}"', f"'HF_TOKEN': '{SECRET}'"),
        f"- name: HF_TOKEN\n  value: {SECRET}",
        f'{{"name": "HF_TOKEN", "value": "{SECRET}"}}',
        f"api-key:\n  - a\n  - {SECRET}\nport: 1",
        f"api_key: |\n  {SECRET}\nport: 1",
        *(f"Cookie: a=b; session={SECRET}", f"curl -H 'Cookie: a=b; c=d; e={SECRET}' h"),
    ],
)
def test_a_form_of_a_secret_is_known(text: str) -> None:
    shown = redact_text(f"at {text}")
    assert SECRET not in shown
    assert redact_text(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "--ssl-keyfile /etc/key.pem --ssl-certfile c.pem --api-server-count 4",
        "--hf-overrides x --hf-config-path y --tok t --access-log",
        "docker run -u 1000:1000 image",
        "python -u run.py a:b",
        "ls -lsu a:b --set a=b; c=d",
        "max_num_batched_tokens=8192 num_key_value_heads=8, tokens: 512",
        "https://h/v1?max_tokens=512&num_key_value_heads=8&model=a",
        "sha256:" + "ab" * 32,
        "commit 9034371c0ffee0123, class vllm.v1.worker.gpu_worker.Worker",
        "HF_TOKEN is set; the HF_TOKEN environment variable",
        "got sig=11, signature=f(a, b), the signature: (a, b)",
        "https://host/path@v2 //a: b@c",
        "-----BEGIN CERTIFICATE-----\nMIIE\n-----END CERTIFICATE-----",
        "pypi-server, glpat, AIza, eyJ",
    ],
)
def test_what_looks_like_a_form_of_a_secret_stays(text: str) -> None:
    assert redact_text(text) == text
    assert redact_argv(text.split(" ")) == text.split(" ")


def test_a_sentence_about_an_option_stays() -> None:
    for text in ("use --api-key, or --port", "there is no --api-key; none was given"):
        assert redact_text(text) == text
    shown = redact_text(f"give --api-key {SECRET} to the server")
    assert shown == "give --api-key [redacted] to the server"


@pytest.mark.parametrize(
    "part",
    [
        *("--a_", "a.", "//", "?key", "api_key", "--api-key ", "-----BEGIN PRIVATE KEY-----"),
        *("token\n", "HF_TOKEN ", "-u ", "sig=", "--api-key a ", "api_key:\n- ", "x:@", '"'),
    ],
)
def test_time_grows_with_the_text_not_with_its_square(part: str) -> None:
    short, long_ = part * (20_000 // len(part)), part * (80_000 // len(part))
    assert _took(long_) < 10 * _took(short) + 0.02


def _took(text: str) -> float:
    def once() -> float:
        start = time.thread_time()
        redact_text(text)
        return time.thread_time() - start

    return min(once() for _ in range(2))
