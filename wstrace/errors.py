"""The one error a person sees: what happened, what to do, and the exit code."""

from __future__ import annotations


def one_line(text: str) -> str:
    """`text` as one line: a line break or a control character (in a file name) is spelt."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def ended(text: str) -> str:
    """`text` as a sentence: with a full stop, unless it ends like one already."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


class WstraceError(Exception):
    """A mistake in what wstrace was given. The CLI prints it as two lines and exits.

    `message` says what is wrong, `hint` what to do about it. `exit_code` is 2 (usage,
    unreadable input) unless the contract of a command says otherwise.
    """

    exit_code = 2

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(f"{message}\n{hint}")
        self.message = message
        self.hint = hint
