"""Why it failed, in one or two sentences each."""

from __future__ import annotations

from typing import Final

ORDER: Final = (
    "The request came during start-up ({phase}), after the lock: vLLM's own warm-up asks for "
    "more than its graph capture did."
)
PERSISTENT: Final = (
    "A resource that must be made before the lock, once in each (ubatch, lane), was first "
    "asked for after it. Bytes in the arena cannot help."
)
SCRATCH: Final = (
    "The layer keeps its own scratch and checks the lock itself: more (token, expert) rows "
    "came than in warm-up. Bytes in the arena cannot help."
)
OTHER_SLOT: Final = (
    "Another slot ({slot}) was made large enough before the lock; the one that was asked "
    "is not."
)
LANE: Final = "A layer asked for a lane that this engine did not make ({detail})."
HALF: Final = (
    "Exactly twice the arena, on a data-parallel expert rank: the slot seems to have been "
    "profiled with half a batch (dual-batch overlap splits the dummy step), or it is a ubatch "
    "slot that was never grown."
)
ASKED_LESS: Final = "The log shows that this site asked before the lock, for less."
NEVER_ASKED: Final = (
    "The log shows what grew the arena before the lock, and this site is not among it."
)
NEVER: Final = (
    "Nothing in warm-up runs this path: the arena was locked at what other layers had "
    "asked for."
)
NEVER_BUT: Final = (
    "Nothing in warm-up runs this path at the sizes of serving ({when}): the arena was locked "
    "at what other layers had asked for, or at such a size."
)
UNDERSIZED: Final = (
    "Warm-up runs this site, but with a smaller shape than serving can bring: the arena was "
    "locked at that."
)
RESERVED: Final = (
    "This release reserves the site's worst case before the lock, so the request was of "
    "another slot, or beyond what was read of the site. A trace tells which."
)
RESERVED_PART: Final = "This release reserves the site before the lock, but for: {gap}."
CONSTANT: Final = (
    "In this release every call of the site asks for the same bytes: had warm-up run it in "
    "this slot, the arena would hold them. The first call came after the lock."
)
SITE_SLOT: Final = (
    "This site's reservation is made in slot (0, 0) only; another ubatch or lane has none."
)
EMPTY: Final = "The arena was empty at the lock: no layer had asked for scratch in warm-up."
NOTHING_ASKED: Final = (
    "An arena of 0.00 MB says that nothing of 5 KiB or more was asked in that slot before the "
    "lock: warm-up did not run this site there."
)
RETOLD: Final = "The message stands in a person's words, not as vLLM prints it."
QUOTED: Final = (
    "The message is quoted in a docstring, a comment or a sentence about it: nothing says that "
    "it happened here."
)
EXAMPLE: Final = (
    "A caller without its line and round sizes look like an example, not like a message."
)
OOM_PROFILE: Final = (
    "Memory ran out while vLLM was measuring it: KV sizing has not happened yet, and the arena "
    "that warm-up asks for is itself too large. Lower --max-num-batched-tokens; a reserve "
    "cannot help."
)
UNKNOWN: Final = (
    "Either nothing in warm-up runs this call, or warm-up ran it with a smaller shape. The "
    "text does not say which; a trace does."
)
OVER: Final = (
    "Nothing failed. This reservation is known to be larger than the site can need{where}, "
    "and the KV cache pays for it."
)
MOVED: Final = (
    "The arena was replaced after graphs had been captured, and then the GPU read memory that "
    "is gone: captured graphs keep the old address. The traceback names an innocent line."
)
V2: Final = (
    "The V2 model runner does not lock the workspace before vLLM 0.30, so a larger request "
    "moves the arena under captured graphs without a word."
)
DCP: Final = (
    "With decode context parallelism the exchange buffers lay in the growable arena before "
    "vLLM 0.24, and warm-up after capture could move it."
)
MAY: Final = (
    "No line here shows that it happened. To know: run again with VLLM_DEBUG_WORKSPACE=1 or "
    "under `wstrace run`."
)
OOM_INSIDE: Final = (
    "The arena itself was growing when memory ran out: KV sizing had not counted this request."
)
OOM_SOMEWHERE: Final = (
    "The arena itself was growing when memory ran out. The text does not show whether KV "
    "sizing was over: before it, --max-num-batched-tokens is too large; after it, this request "
    "was not counted."
)
OOM_AFTER: Final = (
    "Memory ran out after the arena had grown by an amount that KV sizing never saw."
)
KNOWN_OOM: Final = (
    "Memory ran out in a layer whose scratch is known to grow with the request and not to be "
    "seen by profiling; there is no line of the arena itself."
)
KNOWN_OOM_PROFILE: Final = (
    "Memory ran out in a layer that asks the arena, while vLLM was measuring: KV sizing has "
    "not happened yet, and no line shows the arena itself. Lower --max-num-batched-tokens; a "
    "reserve cannot help."
)
LATE: Final = (
    "The arena grew after the KV cache size was decided: these bytes are in no budget, and the "
    "next larger request may find no memory."
)
BY_HAND: Final = (
    "A patch lets the locked arena grow and says so: captured graphs hold the old address, "
    "which is freed memory now. This is WS301 by hand; wstrace's grow keeps the old memory "
    "alive."
)
LOCKED_EARLY: Final = (
    "The arena was locked before warm-up ({phase}): the manager belongs to the process, so an "
    "engine before this one, or a scaling step, left it locked."
)
ANOTHER_SLOT: Final = (
    "vLLM refuses only what is larger than the arena: {asked} against {had} cannot be of one "
    "slot, so the sizes are of two slots, ranks or messages."
)
RESERVED_LATE: Final = (
    "vLLM's own builder reserves this, but after the KV cache size was decided: these bytes "
    "are in no budget."
)
LATE_CAPTURE: Final = (
    "The arena was replaced after graph capture: graphs captured before hold the old address, "
    "which is freed memory now."
)

IN_PROFILING: Final = (OOM_PROFILE, KNOWN_OOM_PROFILE)
"""What no reserve cures: fewer tokens in profiling do."""
# The headline where the code's own (findings/codes.py) says more than the reason, or the
# contrary. A reason that is filled in or goes on is known by its beginning.
_HEADLINES: Final = {
    UNKNOWN: "asked for more than the locked arena has",
    ORDER: "asked in start-up, after the lock",
    LOCKED_EARLY: "asked in start-up, of an arena that was locked already",
    ANOTHER_SLOT: "refused, and less was asked than the arena has",
    HALF: "slot never warmed, or warmed with half a batch",
    OOM_PROFILE: "memory ran out while warm-up grew the arena",
    OOM_INSIDE: "memory ran out while the arena grew",
    OOM_SOMEWHERE: "memory ran out while the arena grew",
    OOM_AFTER: "memory ran out after the arena had grown",
    KNOWN_OOM_PROFILE: "memory ran out in profiling, in a layer that asks the arena",
    KNOWN_OOM: "memory ran out in a layer whose scratch grows with the request",
    V2: "captured graphs may point at a freed arena",
    DCP: "captured graphs may point at a freed arena",
}


def headline(why: str) -> str:
    """The headline of a reason; "" where the code's own says it."""
    return next((h for reason, h in _HEADLINES.items() if says(why, reason)), "")


def says(why: str, reason: str) -> bool:
    """Whether `why` is this reason, filled in or with more behind it."""
    return why.startswith(reason.partition("{")[0])
