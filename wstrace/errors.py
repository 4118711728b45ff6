"""The one error a person sees: what happened, what to do, and the exit code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from wstrace.safe_texts.ci_commands import harmless

FOUND: Final = 1
"""What a command looks for is there, or what it should do failed: its help says which."""
USAGE: Final = 2
"""Wrong usage, input that cannot be read, an error of wstrace's own."""
INCONCLUSIVE: Final = 3
"""Neither shown to be good nor found to be bad."""


def ended_by(signal: int) -> int:
    """The exit code of what this signal ends, as a shell has it."""
    return 128 + signal


def shell_code(code: int) -> int:
    """A child's exit code as a shell has it: Python's is negative where a signal ended it."""
    return code if code >= 0 else ended_by(-code)


def one_line(text: str) -> str:
    """`text` as one line: a line break, a control character (in a file name) and what starts a
    CI system's command are spelt."""
    return harmless("".join(c if c.isprintable() else repr(c)[1:-1] for c in text))


def with_stop(text: str) -> str:
    """`text` as a sentence: with a full stop, unless it ends like one already."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def did_you_mean(name: str, known: Iterable[str], *, most: int = 1, cutoff: float = 0.6) -> str:
    """ "Did you mean NAMES?" with at most `most` of `known` that are like `name`; "" for none.

    `cutoff`: how like, 0 to 1 (difflib's ratio).
    """
    from difflib import get_close_matches

    near = get_close_matches(name, sorted(known), n=most, cutoff=cutoff)
    return f"Did you mean {', '.join(near)}?" if near else ""


class WstraceError(Exception):
    """A mistake in what wstrace was given. The CLI prints it as two lines and exits.

    `message` says what is wrong, `hint` what to do about it. `exit_code` is 2 (usage,
    unreadable input) unless the contract of a command says otherwise. Both may quote what was
    read (a decoder's error does): secrets go here, since an error also becomes a row, a doubt
    or a Python exception.
    """

    exit_code = USAGE

    def __init__(self, message: str, hint: str) -> None:
        from wstrace.safe_texts.redact import redact_text  # its patterns: for errors alone

        message, hint = redact_text(message), redact_text(hint)
        super().__init__(f"{message}\n{hint}")
        self.message = message
        self.hint = hint
