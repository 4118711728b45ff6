"""The page of a finding code: its text, which the package ships, and its address.

The address is one setting: `Documentation` of the project's URLs in pyproject.toml, which an
installation carries in its metadata, or the variable WSTRACE_DOCS_URL for a copy of the
documentation site of one's own. Without it nothing links to a page that may not be there, and
`wstrace explain CODE` shows the text.
"""

from __future__ import annotations

import os
import posixpath
import re
from functools import cache
from importlib.metadata import PackageNotFoundError, metadata
from typing import Final

from wstrace.findings.codes import CODES
from wstrace.report.assets import shipped

VARIABLE: Final = "WSTRACE_DOCS_URL"


def page_text(code: str) -> str:
    """The page as Markdown. Raises WstraceError where the installation lacks it."""
    page = shipped(CODES[code].page, f"page about {code}")
    text = page.read_text(encoding="utf-8")
    # matches: "<!-- run: wstrace report crash -->"
    return _linked(re.sub(r"<!--.*?-->\n?", "", text, flags=re.DOTALL))


def _linked(text: str) -> str:
    """A link to another page as its address on the site; as its words alone where there is no
    site, and where it leads out of docs/: beside an installed package no such file lies."""

    def whole(link: re.Match[str]) -> str:
        words, path, anchor = link[1], link[2], link[3] or ""
        page = "" if path.startswith("../../") else posixpath.normpath(f"findings/{path}")
        url = docs_url(page.removesuffix(".md")) if page.endswith(".md") else None
        return f"[{words}]({url}{anchor})" if url else words

    # matches: "[bounds](../bounds.md#grades)"
    return re.sub(r"\[([^\]]*)\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)", whole, text)


def site_url() -> str | None:
    """Address of the documentation site without a slash at its end, None where unset."""
    return (os.environ.get(VARIABLE) or _documentation() or "").rstrip("/") or None


def page_url(code: str) -> str | None:
    """Address of the code's page on the documentation site, None where no site is set."""
    return docs_url(f"findings/{code}")


def docs_url(page: str) -> str | None:
    """Address of a page of docs/, named without its `.md`; None where no site is set."""
    site = site_url()
    return f"{site}/{page}.html" if site else None  # as mkdocs.yml builds it


@cache
def _documentation() -> str | None:
    """`Documentation` of the installed project's URLs: `Documentation, https://...`."""
    try:
        found = metadata("wstrace").get_all("Project-URL") or []
    except PackageNotFoundError:
        return None
    pairs = (entry.partition(",") for entry in found)
    return next((url.strip() for name, _, url in pairs if name == "Documentation"), None)
