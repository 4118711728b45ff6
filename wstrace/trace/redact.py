"""Removing secrets from a command line and from free text before it is written anywhere."""

from __future__ import annotations

import re
from collections.abc import Sequence

REDACTED = "[redacted]"
# not --tokenizer, --max-tokens
# matches: "--hf-token"
_SECRET_FLAG = re.compile(
    r"(?i)^--?(?=[\w-]*(api[-_]?key|token(?!izer|s\b|-)|password|passwd|secret|credential"
    r"|auth\b|hf[-_]token|bearer))[\w-]+$"
)
# matches: 'Authorization: Bearer x'
_SECRET_NAME = re.compile(
    r"(?i)\b([\w-]*(?:api[-_]?key|secret|password|passwd|credential|access[-_]?token"
    r"|auth[-_]?token|hf[-_]token|authorization)[\w-]*)(\"?\s*[=:]\s*\"?)(?!\[redacted\])"
    r"(?:bearer\s+)?[^\s\"',}&]+"
)
# matches: 'https://user:password@host'
_URL_LOGIN = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^\s/@'\"]+@")
# matches: 'https://host/x?token=abc&sig=d'
_URL_QUERY = re.compile(
    r"(?i)([?&][\w-]*(?:token|key|secret|password|sig|signature|auth|credential)[\w-]*=)"
    r"[^&\s'\"#]+"
)
# hf_AbCdEfGh, sk-..., ghp_..., AKIA..., xoxb-...
# matches: 'eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM.c2ln'
_KNOWN_TOKEN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,}|gh[pousr]_[A-Za-z0-9]{8,}"
    r"|AKIA[0-9A-Z]{12,}|xox[abpr]-[A-Za-z0-9-]{8,}"
    r"|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]+)"
)
_PASSES = (
    (_URL_LOGIN, rf"\1{REDACTED}@"),
    (_URL_QUERY, rf"\1{REDACTED}"),
    (_SECRET_NAME, rf"\1\2{REDACTED}"),
    (_KNOWN_TOKEN, REDACTED),
)


def redact_text(text: str) -> str:
    """`text` without credentials: URL logins, secret parameters, known token forms."""
    for pattern, replacement in _PASSES:
        text = pattern.sub(replacement, text)
    return text


def redact_argv(argv: Sequence[str]) -> list[str]:
    """A command line without secret values: `--api-key X [Y ...]`, `--token=X`, URLs.

    A secret flag hides every following word up to the next option, because vLLM's
    `--api-key` takes several.
    """
    redacted: list[str] = []
    hiding = False
    for word in argv:
        flag, equals, _ = word.partition("=")
        if word.startswith("-"):
            hiding = bool(_SECRET_FLAG.match(flag)) and not equals
            secret = equals and _SECRET_FLAG.match(flag)
            redacted.append(f"{flag}={REDACTED}" if secret else redact_text(word))
        else:
            redacted.append(REDACTED if hiding else redact_text(word))
    return redacted
