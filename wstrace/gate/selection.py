"""`--fail-on`: which findings fail the gate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from wstrace.errors import WstraceError
from wstrace.findings.codes import ESCAPES, TITLES
from wstrace.findings.finding import Finding

SEVERITIES: Final[dict[str, frozenset[str]]] = {
    "none": frozenset(),
    "error": frozenset(("error",)),
    "warning": frozenset(("error", "warning")),
    "all": frozenset(("error", "warning", "note")),
}


@dataclass(frozen=True)
class Selection:
    """Findings that fail: by severity, or by code whatever their severity."""

    severities: frozenset[str] = SEVERITIES["error"]
    codes: frozenset[str] = frozenset()

    def selects(self, finding: Finding) -> bool:
        """True when this finding fails the gate."""
        return finding.severity in self.severities or finding.code in self.codes


def parse_selection(text: str) -> Selection:
    """`error`, `warning` (and above), `all`, `none`, `escapes`, codes, or several by comma.

    Raises WstraceError (exit 2) for an empty or an unknown name, and for `none` with others.
    """
    words = [part.strip() for part in text.split(",")]
    if "none" in words and len(set(words)) > 1:
        raise WstraceError(
            f"--fail-on {text}: `none` goes with nothing else.",
            "Leave `none` out, or the rest.",
        )
    severities: frozenset[str] = frozenset()
    codes: frozenset[str] = frozenset()
    for word in words:
        if word in SEVERITIES:
            severities |= SEVERITIES[word]
        elif word == "escapes":
            codes |= ESCAPES
        elif word.upper() in TITLES:
            codes |= {word.upper()}
        else:
            raise WstraceError(
                f"--fail-on does not know {word!r}.",
                f"Use {', '.join(SEVERITIES)}, escapes, or codes such as WS102,WS301.",
            )
    return Selection(severities, codes)
