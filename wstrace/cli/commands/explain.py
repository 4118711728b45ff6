"""`wstrace explain CODE`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def _begun(incomplete: str) -> list[str]:
    """For the shell's completion, which keeps what begins with what was typed."""
    from wstrace.findings.codes import TITLES

    codes = map(str.lower, TITLES) if incomplete.islower() else TITLES
    return [code for code in codes if code.startswith(incomplete)]


CODES = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CODE]...",
        help="Codes of findings, such as WS101; all if absent.",
        autocompletion=_begun,
    ),
]


def command(codes: CODES = None) -> None:
    """What a finding's code means, and what to do about it.

    Example: wstrace explain WS101
    """
    if not codes:
        from wstrace.findings.codes import TITLES

        print("\n".join(f"{each}  {title}" for each, title in TITLES.items()))
        return
    known = list(dict.fromkeys(map(_known, codes)))
    from wstrace.report.pages import page_text, page_url

    for position, code in enumerate(known):
        print("\n" * bool(position), end="")
        _show(page_text(code))
        if url := page_url(code):
            print(f"\n{url}")


def _known(code: str) -> str:
    from wstrace.errors import WstraceError, did_you_mean
    from wstrace.findings.codes import TITLES

    wanted = code.strip().upper()
    if wanted not in TITLES:
        guess = did_you_mean(wanted, TITLES)
        raise WstraceError(
            f"No finding has the code {code!r}.",
            (f"{guess} " if guess else "") + "`wstrace explain` lists them.",
        )
    return wanted


def _show(text: str) -> None:
    """Markdown as it is written, or laid out on a terminal."""
    if not sys.stdout.isatty():
        print(text.rstrip())
        return
    from rich.markdown import Markdown

    from wstrace.report.console import plain_console

    plain_console().print(Markdown(text))
