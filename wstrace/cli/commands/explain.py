"""`wstrace explain CODE`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

CODE = Annotated[
    str | None, typer.Argument(help="A finding's code, such as WS101; all if absent.")
]


def command(code: CODE = None) -> None:
    """What a finding's code means, and what to do about it.

    Example: wstrace explain WS101
    """
    if code is None:
        from wstrace.findings.codes import TITLES

        print("\n".join(f"{each}  {title}" for each, title in TITLES.items()))
        return
    known = _known(code)
    from wstrace.report.pages import page_text, page_url

    _show(page_text(known))
    if url := page_url(known):
        print(f"\n{url}")


def _known(code: str) -> str:
    from wstrace.errors import WstraceError, did_you_mean
    from wstrace.findings.codes import TITLES

    wanted = code.upper()
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
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(text))
