"""What a CI system would take for a command in a line that somebody else wrote.

GitHub's runner takes `::NAME::` and `::NAME PROPERTIES::` at the start of a line, behind
blanks too, for the names that it knows, in any case. It takes `##[NAME]` anywhere in a line,
as Azure's agent does `##vso[...]` and TeamCity `##teamcity[...]`. Source: the parsers of those
agents.

Where a line starts is for whoever lays it out: a table folds a long name anywhere. So a known
name is made harmless wherever it stands, another one where a word starts, and C++'s
`torch::empty` stays as it is.
"""

from __future__ import annotations

import re
from typing import Final

_NAMES: Final = (
    "add-mask|add-matcher|add-path|debug|echo|endgroup|error|group|internal-set-repo-path|notice"
    "|remove-matcher|save-state|set-env|set-output|stop-commands|warning"
)
_ENDS: Final = r"(?=:?$|::|\s)"
"""Behind a name: the text's end too, since a file and a function are joined by a colon."""
_COLONS: Final = (
    # matches: 'x::error::pwned'
    re.compile(rf"(?im)(:):(?=(?:{_NAMES}){_ENDS})"),
    # matches: '::a-token::'
    re.compile(r"(?<!\S)(:):(?=[\w-]+(?:\s.*)?::)"),
    # what a file without a name and this function would be
    # matches: ':error::'
    re.compile(rf"(?im)^(\s*):(?=(?:{_NAMES}){_ENDS})"),
    # matches: ':'
    re.compile(r"(?m)^(\s*):(?=\s*$)"),
)
# matches: '##[error]pwned'
_MARKS: Final = re.compile(r"#(?=#\w*\[)")


def harmless(text: str) -> str:
    r"""`text` without a CI system's commands: `:\x3aerror::`, `\x23#[error]`, as `one_line`
    spells what a terminal would obey."""
    if "##" in text:
        text = _MARKS.sub(r"\\x23", text)
    if ":" in text:
        for pattern in _COLONS:
            text = pattern.sub(r"\1\\x3a", text)
    return text
