"""Removing secrets from a command line and from free text before it is written anywhere."""

from __future__ import annotations

import re
from collections.abc import Sequence

from wstrace.safe_texts.secrets_named import (
    OPTION,
    REDACTED,
    hide_values,
    is_secret,
    is_secret_option,
    takes_several,
)

__all__ = ["REDACTED", "redact_argv", "redact_text"]

# Up to the last @ before the host; without a scheme where there is a password.
# matches: 'https://user:pass@word@host'
_URL_LOGIN = re.compile(r"(//)(?:(?<=://)[^\s/'\"]+|[^\s/'\":]*:[^\s/'\"]+)@")
# matches: 'https://host/x?token=abc&sig=d'
_URL_QUERY = re.compile(r"(?<=[?&])([\w.-]{2,80})=[^&\s'\"#]+")
# Of a query, where the word is no part of a sentence.
# matches: 'x-sig'
_QUERY_NAME = re.compile(r"(?i)(?:key|sig|signature|auth|pass)$")
# A signature of a shared address, its begin cut off; `sig=11` is a signal.
# matches: 'sig=c2lnbmF0dXJl'
_SIG = re.compile(r"(sig=)(?<!\w.{3}=)[^\s&;'\"\[]{8,}")
# A private key to its end, or as far as it is there.
# matches: '-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----'
_PEM = re.compile(
    r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----)"
    r"(?:[^-]*(?:-(?!----)[^-]*)*(?=-----END )|[A-Za-z0-9+/=\\\s]+)"
)
# curl's option for a login, behind its first dash; short ones may be bundled: `-sSu`.
_LOGIN_NAME = r"(?:[fgikLsSv]{0,8}[uU]|-user|-proxy-user)"
# `docker run -u 1000:1000` is none.
# matches: '-u user:password'
_LOGIN = re.compile(
    rf"(-(?<![\w-]-){_LOGIN_NAME}(?:[\"'],)?[ \t=]{{0,9}}[\"']?)"
    r"(?!\d{1,9}:\d{1,9}(?![\w.-]))([^\s:/'\"-][^\s:/'\"]{0,80}:)(?!/)[^\s'\"]+"
)
# hf_AbCdEfGh, sk-..., ghp_..., AKIA..., xoxb-...
# matches: 'eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM.c2ln'
_KNOWN_TOKEN = re.compile(
    r"\b(?:github_pat_\w{8,}|dckr_[a-z]{3}_[\w-]{8,}|pypi-[\w-]{16,}|AIza[\w-]{16,}"
    r"|npm_[A-Za-z0-9]{16,}|gsk_[A-Za-z0-9]{16,}|glrt-[\w-]{8,}|ya29\.[\w-]{16,}"
    r"|hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,}|gh[pousr]_[A-Za-z0-9]{8,}|glpat-[\w-]{8,}|nvapi-[\w-]{8,}"
    r"|A[KS]IA[0-9A-Z]{12,}|xox[a-z]-[A-Za-z0-9-]{8,}"
    r"|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]+)"
)
# matches: 'Bearer s3cr3t'
_SCHEME_ALONE = re.compile(
    r"\b((?:[Bb]earer|BEARER|[Bb]asic|BASIC)[ \t]+)(?=\S*[\d=])[\w.~+/-]{5,}={0,2}"
)


def _query(found: re.Match[str]) -> str:
    """A parameter of an address, without its value where the name is a secret's."""
    secret = is_secret(found[1]) or _QUERY_NAME.search(found[1])
    return f"{found[1]}={REDACTED}" if secret else found[0]


_PASSES = (
    (_PEM, rf"\1{REDACTED}"),
    (_URL_LOGIN, rf"\1{REDACTED}@"),
    (_URL_QUERY, _query),
    (_LOGIN, rf"\1\2{REDACTED}"),
    (_SIG, rf"\1{REDACTED}"),
)
_LATER = (
    (_SCHEME_ALONE, rf"\1{REDACTED}"),
    (_KNOWN_TOKEN, REDACTED),
)
# matches: '-sSu'
_LOGIN_FLAG = re.compile(rf"-{_LOGIN_NAME}$")


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
    `--api-key` takes several; after `--api-key=X` all but what may be the model, `org/name`.
    """
    redacted: list[str] = []
    hiding = given = login = False
    for word in argv:
        flag, equals, _ = word.partition("=")
        if word.startswith("-") and not (hiding and not OPTION.match(word)):
            secret = is_secret_option(flag)
            given = bool(secret and equals)
            hiding = secret and (not equals or takes_several(flag))
            redacted.append(f"{flag}={REDACTED}" if given else redact_text(word))
            login = bool(_LOGIN_FLAG.match(word))
        elif hiding and not (given and "/" in word):
            redacted.append(REDACTED)
        else:
            redacted.append(_login(word) if login else redact_text(word))
            login = False
    return redacted


def _login(word: str) -> str:
    """The word after `-u`, as it is redacted there."""
    return redact_text(f"-u {word}").removeprefix("-u ")
