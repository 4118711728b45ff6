"""Removing secrets from a command line and from free text before it is written anywhere."""

from __future__ import annotations

import re
from collections.abc import Sequence

from wstrace.trace.secrets_named import REDACTED, hide_values, is_secret

__all__ = ["REDACTED", "redact_argv", "redact_text"]

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
    r"\b(?:hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,}|gh[pousr]_[A-Za-z0-9]{8,}|glpat-[\w-]{8,}|nvapi-[\w-]{8,}"
    r"|A[KS]IA[0-9A-Z]{12,}|xox[abpr]-[A-Za-z0-9-]{8,}"
    r"|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]+)"
)
# matches: 'Bearer s3cr3t'
_SCHEME_ALONE = re.compile(
    r"\b((?:[Bb]earer|BEARER|[Bb]asic|BASIC)[ \t]+)(?=\S*[\d=])[\w.~+/-]{5,}={0,2}"
)
_PASSES = (
    (_URL_LOGIN, rf"\1{REDACTED}@"),
    (_URL_QUERY, rf"\1{REDACTED}"),
)
_LATER = (
    (_SCHEME_ALONE, rf"\1{REDACTED}"),
    (_KNOWN_TOKEN, REDACTED),
)


def redact_text(text: str) -> str:
    """`text` without credentials: URL logins, values of secret names, known token forms."""
    for pattern, replacement in _PASSES:
        text = pattern.sub(replacement, text)
    text = hide_values(text)
    for pattern, replacement in _LATER:
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
            secret = is_secret(flag)
            hiding = secret and not equals
            hidden = secret and equals
            redacted.append(f"{flag}={REDACTED}" if hidden else redact_text(word))
        else:
            redacted.append(REDACTED if hiding else redact_text(word))
    return redacted
