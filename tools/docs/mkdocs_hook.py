"""mkdocs hook: a link to a file outside docs/ works on a code host, not on the site.

The site shows such a link's text instead.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

# matches: "[the gate](gate.md)"
LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>[^)#\s:]+)\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Called by mkdocs for each page before it renders it."""
    folder = posixpath.dirname(page.file.src_uri)

    def plain(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, match["target"]))
        return match["text"] if path.startswith("../") else match[0]

    return LINK.sub(plain, markdown)
