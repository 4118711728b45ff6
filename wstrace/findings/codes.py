"""The codes of findings: one row each, and all that is derived from a code.

To add one: a row here, `docs/findings/CODE.md` and its entry in mkdocs.yml, the row of the
README's table, and the function that makes the finding with its test.
tests/unit/findings/test_codes.py says what is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Severity = Literal["error", "warning", "note", "inconclusive"]
ORDER: Final[dict[str, int]] = {"error": 0, "warning": 1, "inconclusive": 2, "note": 3}


@dataclass(frozen=True)
class Code:
    """One code. `severity` is in words where it depends on the finding's numbers.

    `escape`: a request that a locked arena, or a layer's own check, refused or that grow let
    pass. `arena`: more bytes in an arena can cure it, so a reserve may.
    `foretold`: a bound says that it will be an escape; nothing has outgrown its arena yet.
    `unwarmed`: its site asked for nothing in warm-up. `resource`: what was refused is an
    object, not bytes. `own_subject`: its detail is said of the graphs, not of its site.
    `mend`: something has to be done though it is no error. `lacks`: what a trace that is
    inconclusive by it does not show whole.
    """

    code: str
    title: str
    severity: str
    escape: bool = False
    arena: bool = True
    foretold: bool = False
    unwarmed: bool = False
    resource: bool = False
    own_subject: bool = False
    mend: bool = False
    lacks: Literal["", "start", "rank"] = ""

    @property
    def outgrows(self) -> bool:
        """Whether it is about a site's request against what there is for it."""
        return self.escape or self.foretold

    @property
    def page(self) -> str:
        """Its page in this repository."""
        return f"docs/findings/{self.code}.md"


CODES: Final[dict[str, Code]] = {
    row.code: row
    for row in (
        Code(
            "WS101",
            "asked after the lock, never before it",
            "error",
            escape=True,
            unwarmed=True,
        ),
        Code("WS102", "asked for more after the lock than before it", "error", escape=True),
        Code(
            "WS103",
            "latent escape, masked by a larger neighbour",
            "error if its bound is above the arena, else note",
            foretold=True,
        ),
        Code("WS104", "slot never warmed", "error", escape=True, unwarmed=True),
        Code(
            "WS105",
            "persistent resource missing after the lock",
            "error",
            escape=True,
            arena=False,
            resource=True,
        ),
        Code(
            "WS106",
            "a layer's own scratch was too small after the lock",
            "error",
            escape=True,
            arena=False,
        ),
        Code(
            "WS107",
            "will escape: its proved bound is above the arena",
            "warning",
            foretold=True,
            mend=True,
        ),
        Code("WS201", "growth that KV sizing never saw", "warning"),
        Code("WS202", "serving with no lock", "warning", mend=True),
        Code("WS203", "reserved far above what was used", "note", arena=False),
        Code("WS204", "ranks or slots locked at different sizes", "warning"),
        Code("WS301", "captured graphs point at a freed arena", "error", own_subject=True),
        Code("WS302", "a stale view", "warning", arena=False),
        Code("WS303", "growth during a capture", "error"),
        Code("WS304", "one slot, two streams in one step", "warning", arena=False),
        Code(
            "WS401",
            "the trace ends before the lock",
            "inconclusive",
            arena=False,
            lacks="start",
        ),
        Code(
            "WS402",
            "a rank left no trace, or a hook stood down",
            "inconclusive",
            arena=False,
            lacks="rank",
        ),
        Code("WS403", "truncated", "note", arena=False),
    )
}
TITLES: Final = {code: row.title for code, row in CODES.items()}
ESCAPES: Final = frozenset(code for code, row in CODES.items() if row.escape)
FORETOLD: Final = frozenset(code for code, row in CODES.items() if row.foretold)
OUTGROWN: Final = frozenset(code for code, row in CODES.items() if row.escape and row.arena)
"""Escapes of an arena: what those of FORETOLD become."""
REFUSED_ELSEWHERE: Final = frozenset(
    c for c, row in CODES.items() if row.escape and not row.arena
)
"""Refusals that no bytes in an arena cure: a persistent resource, a layer's own scratch."""
INCONCLUSIVE_FAMILY: Final = "WS40x"
"""The type that JUnit's XML gives an inconclusive run, be it so by a code or by none."""
