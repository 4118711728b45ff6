"""Remove from text what must not be published: people, machines, requests, prompts.

`wstrace.safe_texts.redact` takes out credentials; a pasted log has more: host names, addresses,
request ids, token ids, home folders.
"""

from __future__ import annotations

import re
from typing import Any, Final

from wstrace.safe_texts.ci_commands import harmless
from wstrace.safe_texts.redact import redact_text

_RULES: Final = (
    # matches: 'chatcmpl-8f1c2a33deadbeef'
    (re.compile(r"\b(?:chatcmpl|cmpl|embd|resp|req|request)-[\w-]{6,}"), "[request]"),
    # matches: '123e4567-e89b-12d3-a456-426614174000'
    (re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b"), "[request]"),
    # matches: '10.11.12.13:8000'
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"), "[address]"),
    # matches: 'fe80:0:0:1:2:3'
    (re.compile(r"(?<![\w:])(?:[0-9a-f]{1,4}:){3,7}[0-9a-f]{1,4}(?![\w:])"), "[address]"),
    # matches: 'someone@example.org'
    (re.compile(r"\b[\w.+-]+@[\w-]+\.[\w.]+\b"), "[mail]"),
    (
        # matches: 'gpu17.prod.corp'
        re.compile(
            r"\b(?!vllm\b|torch\b)[a-z0-9-]+(?:\.[a-z0-9-]+)*"
            r"\.(?:com|net|org|io|ai|cloud|local|internal|lan|corp|cn|eu|de)\b(?!/vllm)"
        ),
        "[host]",
    ),
    # matches: '/home/alice'
    (re.compile(r"(?:/home/|/Users/|/root/|[A-Za-z]:[\\/]Users[\\/])[^\s/\\:'\"]*"), "[home]"),
    # matches: '[15496, 11, 995, 318, 257, 1332, 286, 262]'
    (re.compile(r"\[\s*\d+(?:\s*,\s*\d+){7,}\s*(?:,\s*\.\.\.)?\]?"), "[numbers]"),
    (
        # matches: "prompt='my history'"
        re.compile(
            r"(?i)\b(prompt|content|text|messages)(['\"]?\s*[=:]\s*)(['\"]).{0,2000}?\3"
        ),
        r"\1\2[text]",
    ),
)


def redact(text: str) -> str:
    """`text` without credentials, host names, addresses, ids, token lists and prompts; what a
    CI system would obey is spelt."""
    text = redact_text(text)
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return harmless(text)


def redact_value(value: Any) -> Any:
    """The same for every text in a JSON value; numbers stay."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: redact_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [redact_value(item) for item in value]
    return value
