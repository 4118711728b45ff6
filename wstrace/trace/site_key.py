"""A site's name: `FILE:FUNCTION`, and `FILE:LINE:FUNCTION` where a text names the call.

The one place that takes such a name apart. A file may hold a colon (`C:/x/attn.py`,
`<string>:1`), and so may a function that was made while the program ran.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

# matches: "C:/x/turboquant_attn.py:TurboQuant.forward"
_SITE: Final = re.compile(r"(?P<file>.+?\.py|.*):(?P<function>.*)", re.DOTALL)
# matches: "turboquant_attn.py:747:_continuation_prefill"
_CALL: Final = re.compile(r"(?P<file>.+?\.py|.*):\d+:(?P<function>.*)", re.DOTALL)


class SiteKey(msgspec.Struct, frozen=True, order=True, gc=False):
    """A site's identity: file and qualified function, never the line."""

    file: str
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.function}"

    @classmethod
    def named(cls, text: str) -> SiteKey:
        """The site of `FILE:FUNCTION`. The file ends at the first `.py:`, else at the last
        colon; a text without one is a function."""
        found = _SITE.fullmatch(text)
        return cls(found["file"], found["function"]) if found else cls("", text)

    @classmethod
    def called(cls, text: str) -> SiteKey:
        """The site of `FILE:LINE:FUNCTION`, as vLLM's error and a stack name a call; of a text
        without a line the site that `named` makes of it."""
        found = _CALL.fullmatch(text)
        return cls(found["file"], found["function"]) if found else cls.named(text)

    def is_called(self, text: str) -> bool:
        """A site is named in full, by its function, by the end of either, or as vLLM's error
        names it: `turboquant_attn.py:747:_continuation_prefill`."""
        short = self.function.rpartition(".")[2]
        names = (str(self), str(SiteKey(self.file, short)))
        call = _CALL.fullmatch(text)
        # a line names no site
        wanted = {text, str(SiteKey.called(text))} if call else {text}
        return any(
            word in (*names, self.function, short)
            or any(name.endswith(f"/{word}") for name in names)
            for word in wanted
        )
