"""Skip what cannot matter: most of a big log never reaches Python's slow parts.

The first block, which is all of a pasted report, is always kept, a further one when any
anchor stands in it. Anchors have no blanks and are looked for in
the block without its blanks, so that a wrapped line does not hide one; each message has
several, so that a prefix inside one of them does not either.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from wstrace.triage.ingest.opening import Block
from wstrace.triage.ingest.vllm_prefix import LABEL_REACH, process_before

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

CONTEXT: Final = 1 << 15
BUDGET: Final = 8 << 20
LOOKS: Final = 1024  # past the budget, from each end of a block: junk has 50,000 in one
MOST_KEYS: Final = 100_000
MOST_PIDS: Final = 64
_BLANKS: Final = b" \t\r\n>|\\\x00"
_MESSAGE: Final = 240
# Anchor to how many of the following bytes make one occurrence differ from another. They are
# pieces of the texts that `extract` reads, where each has its release.
ANCHORS: Final = {
    b"orkspaceislocked": _MESSAGE,
    b"ORKSPACEISLOCKED": _MESSAGE,
    b"butallocation": _MESSAGE,
    b"currentsizeis": 12,
    b"lockedsize": 20,
    b"growthisnotallowed": 0,
    b"afterlocking": 0,
    b"notallocatedduring": 0,
    b"ersistentworkspace": 120,
    b"permutescratch": 60,
    b"esizedworkspace": 120,
    b"Currentsizes": 60,
    b"orkspacelane": 30,
    b"illegalmemory": 0,
    b"utofmemory": 0,
    b"OutOfMemory": 0,
    b"vailableKVcache": 20,
    b"phcapturing": 0,
    b"withconfig:": 400,
    b"non-defaultargs": 400,
    b"SchedulerOutput(": 0,
    b"assignedasDP": 60,
    b"version0.": 12,
    b"versiondev": 0,
    b"V2ModelRunner": 0,
    b"[model_runner.py:": 0,
    b"Modelloadingtook": 0,
    b"CapturingCUDAgraphs": 0,
    b"Applicationstartupcomplete": 0,
    b"initengine(profile,createkvcache": 0,
    b"AlignedAllocator": 0,
    b"FLASHINFER_WORKSPACE_BUFFER_SIZE=": 60,
    b"WorkspaceManagernotinitialized": 0,
    b"max_model_len:reducedfrom": 30,
    b"KVcacheisneeded": 60,
    b"forthecacheblocks": 0,
    b"islessthandesired": 0,
    b"Hardwarelimit:": 20,
    b"ncclUnhandledCudaError": 0,
    b"/dev/shm/nccl": 0,
    b"symmetricheap": 0,
    b"blocksizeto": 8,
    b"--max-": 40,
}
# journalctl -o json writes a message that is not plain text as a list of byte values
# matches: b'MESSAGE":[69,114,114,111,114]'
_AS_BYTES: Final = re.compile(rb'MESSAGE":\[(\d{1,3}(?:,\d{1,3})*)\]')
_END: Final = b"allowed"


class Prefilter:
    """Which blocks of an input may matter.

    The first BUDGET bytes with an anchor are all kept. After that a block has to hold
    something new: a log that repeats the same failure for a gigabyte is read once. Of a block
    that is dense with one anchor only the ends are compared.
    """

    def __init__(self, budget: int = BUDGET) -> None:
        self.repeated = 0
        self._budget = budget
        self._keys: set[tuple[bytes, ...]] = set()
        self._by_pid: Counter[bytes] = Counter()

    def kept(self, blocks: Iterable[Block]) -> Iterator[tuple[Block, bool]]:
        """The blocks that may matter, with the ends of their neighbours.

        The flag says that the block follows the one given before without a gap.
        """
        skipped: Block | None = None
        edge = b""
        after_hit = False
        for number, block in enumerate(blocks):
            if number == 0 or self._matters(edge + block.data):
                if skipped is not None:
                    yield _tail(skipped), False
                yield block, number == 0 or after_hit or skipped is not None
                skipped, after_hit = None, True
            else:
                if after_hit:
                    yield _head(block), True
                skipped, after_hit = block, False
            edge = block.data[-256:]

    def _matters(self, data: bytes) -> bool:
        squeezed = _squeeze(data)
        found = [anchor for anchor in ANCHORS if anchor in squeezed]
        if not found:
            return False
        new = len(self._keys) < MOST_KEYS and self._learn(squeezed, found)
        self._budget -= len(data)
        if new or self._budget > 0:
            return True
        self.repeated += 1
        return False

    def _learn(self, squeezed: bytes, anchors: list[bytes]) -> bool:
        """Remember what the block says; True where any of it is new."""
        before, looks = len(self._keys), LOOKS if self._budget <= 0 else len(squeezed)
        for anchor in anchors:
            reach = ANCHORS[anchor]
            if not reach:
                self._keys.add((anchor,))
                continue
            for saying in _sayings(squeezed, anchor, reach, looks):
                self._add(saying)
        return len(self._keys) > before

    def _add(self, saying: tuple[bytes, bytes]) -> None:
        """Keep a process's saying. Of processes that are told by their pid alone a restart is
        another one: the same saying of MOST_PIDS of them is enough."""
        process, following = saying
        if b"pid=" in process and saying not in self._keys:
            if self._by_pid[following] >= MOST_PIDS:
                return
            self._by_pid[following] += 1
        self._keys.add(saying)


def _squeeze(data: bytes) -> bytes:
    """Without blanks, with journald's byte values as the text that they are."""
    squeezed = data.translate(None, _BLANKS)
    return _AS_BYTES.sub(_text_of, squeezed) if b'MESSAGE":[' in squeezed else squeezed


def _text_of(found: re.Match[bytes]) -> bytes:
    values = [int(value) for value in found[1].split(b",")]
    return bytes(values).translate(None, _BLANKS) if max(values) < 256 else found[0]


def _sayings(
    squeezed: bytes, anchor: bytes, reach: int, looks: int
) -> Iterator[tuple[bytes, bytes]]:
    """What follows an anchor, with the process label in front of it.

    The block's end cuts the last ones at any point: those are new only where no whole one
    of the block begins so, or junk would be new in every block.
    """
    around: set[bytes] = set()
    whole: set[bytes] = set()
    for position in _places(squeezed, anchor, looks):
        near = squeezed[max(0, position - LABEL_REACH) : position + reach]
        if near in around:
            continue
        around.add(near)
        following, end, _ = squeezed[position : position + reach].partition(_END)
        if end or position + reach <= len(squeezed):
            whole.add(following)
        elif any(known.startswith(following) for known in whole):
            continue
        yield process_before(squeezed, position), following


def _places(squeezed: bytes, anchor: bytes, most: int) -> Iterator[int]:
    """Where an anchor stands: of more than twice `most` places the first and the last."""
    position, last = squeezed.find(anchor), 0
    for _ in range(most):
        if position < 0:
            return
        yield position
        last, position = position, squeezed.find(anchor, position + len(anchor))
    position = squeezed.rfind(anchor)
    for _ in range(most):
        if position <= last:
            return
        yield position
        position = squeezed.rfind(anchor, 0, position)


def _tail(block: Block) -> Block:
    start = block.data.find(b"\n", max(0, len(block.data) - CONTEXT)) + 1
    if not start:
        start = max(0, len(block.data) - CONTEXT)
    return Block(block.data[start:], block.first_line + block.data.count(b"\n", 0, start))


def _head(block: Block) -> Block:
    end = block.data.find(b"\n", CONTEXT) + 1
    return Block(block.data[: end or CONTEXT], block.first_line)
