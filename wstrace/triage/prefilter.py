"""Skip what cannot matter: most of a big log never reaches Python's slow parts.

A block is kept when any anchor stands in it. Anchors have no blanks and are looked for in
the block without its blanks, so that a wrapped line does not hide one; each message has
several, so that a prefix inside one of them does not either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from wstrace.triage.reading import Block

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

CONTEXT: Final = 1 << 15
_BLANKS: Final = b" \t\r\n>|\\\x00"
ANCHORS: Final = (
    b"orkspaceislocked",
    b"butallocation",
    b"currentsizeis",
    b"growthisnotallowed",
    b"afterlocking",
    b"notallocatedduring",
    b"ersistentworkspace",
    b"permutescratch",
    b"esizedworkspace",
    b"Currentsizes",
    b"orkspacelane",
    b"illegalmemory",
    b"utofmemory",
    b"OutOfMemory",
    b"vailableKVcache",
    b"phcapturing",
    b"withconfig:",
    b"non-defaultargs",
    b"SchedulerOutput(",
    b"assignedasDP",
    b"version0.",
    b"V2ModelRunner",
    b"blocksizeto",
    b"--max-",
)


def hits(data: bytes) -> bool:
    """True where something in `data` may matter."""
    squeezed = data.translate(None, _BLANKS)
    return any(anchor in squeezed for anchor in ANCHORS)


def kept(blocks: Iterable[Block]) -> Iterator[tuple[Block, bool]]:
    """The blocks that may matter, with the ends of their neighbours.

    The flag says that the block follows the one given before without a gap.
    """
    skipped: Block | None = None
    edge = b""
    after_hit = False
    for number, block in enumerate(blocks):
        if hits(edge + block.data):
            if skipped is not None:
                yield _tail(skipped), False
            yield block, number == 0 or after_hit or skipped is not None
            skipped, after_hit = None, True
        else:
            if after_hit:
                yield _head(block), True
            skipped, after_hit = block, False
        edge = block.data[-256:]


def _tail(block: Block) -> Block:
    start = block.data.find(b"\n", max(0, len(block.data) - CONTEXT)) + 1
    if not start:
        start = max(0, len(block.data) - CONTEXT)
    return Block(block.data[start:], block.first_line + block.data.count(b"\n", 0, start))


def _head(block: Block) -> Block:
    end = block.data.find(b"\n", CONTEXT) + 1
    return Block(block.data[: end or CONTEXT], block.first_line)
