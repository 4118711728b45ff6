"""What one text says, before anyone draws a conclusion. Sizes are bytes where exact."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from wstrace.trace.records import Ranks
from wstrace.triage.ingest.ranks import NOWHERE

if TYPE_CHECKING:
    from wstrace.trace.records import Phase
    from wstrace.triage.ingest.squeeze import Squeezed

RefusalKind = Literal["arena", "persistent", "shape", "scratch", "lane"]
FaultKind = Literal["illegal_access", "out_of_memory"]
RelativeKind = Literal[
    "flashinfer_buffer",
    "kernel_scratch",
    "no_manager",
    "fitted_context",
    "kv_cache",
    "graph_memory",
    "shared_memory",
    "communicator",
    "all2all_buffer",
]


@dataclass(frozen=True)
class PrintedSize:
    """A size as it was printed: `text` such as '16.00 MB', and what it may be in bytes.

    Rows of a scratch buffer are a size too: then `bytes` is None.
    """

    text: str
    bytes: int | None
    low: int = 0
    high: int = -1

    def fits(self, exact: int) -> bool:
        """True where a size of `exact` bytes would have been printed so."""
        return self.low <= exact <= self.high


@dataclass(frozen=True)
class Frame:
    """One frame of a traceback, `path` with forward slashes.

    `source` is the code that it shows, `above` code whose own frame was cut off before it; both
    without blanks.
    """

    path: str
    line: int
    function: str
    source: str = ""
    above: str = ""


@dataclass(frozen=True)
class Origin:
    """Where in the text something stands: the line, the process, its ranks. `part` counts the
    lines inside a physical one."""

    line: int
    stream: str = ""
    label: str = ""
    ranks: Ranks = NOWHERE
    part: int = 0

    @property
    def at(self) -> tuple[int, int]:
        """What orders facts: the physical line, and which of its lines."""
        return self.line, self.part


@dataclass(frozen=True)
class Mention:
    """Talk about the message: it stands there, but states no failure."""

    origin: Origin


@dataclass(frozen=True)
class Captured:
    """`Graph capturing finished`."""

    origin: Origin


@dataclass(frozen=True)
class Stage:
    """A line that says where in its life the engine is; None where what follows is unknown."""

    origin: Origin
    phase: Phase | None


@dataclass(frozen=True)
class Relative:
    """A message that looks like the arena's and is not. `first` and `second` are its numbers:
    bytes asked for and there, tokens before and after (a fitted context). `name` says which of
    a kind's messages it is."""

    kind: RelativeKind
    origin: Origin
    name: str
    first: int | None = None
    second: int | None = None
    frames: tuple[Frame, ...] = ()


@dataclass(frozen=True)
class Refusal:
    """vLLM refused to serve a request from a locked workspace.

    `caller` is the site as printed; file, line and function are its parts, completed from
    the traceback. `name` is the key of a persistent resource or the name an old version
    printed. `retold`: the sizes stand in a person's words, `quoted`: all of it stands in a
    docstring, a comment, or a sentence about the message.
    """

    kind: RefusalKind
    origin: Origin
    file: str | None = None
    line: int | None = None
    function: str | None = None
    required: PrintedSize | None = None
    current: PrintedSize | None = None
    name: str | None = None
    detail: str | None = None
    lane: int | None = None
    layer: str | None = None
    frames: tuple[Frame, ...] = ()
    times: int = 1
    retold: bool = False
    quoted: bool = False

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal for two reports of the same failure in the same rank."""
        texts = (self.required and self.required.text, self.current and self.current.text)
        return self.kind, self.file, self.function, *texts, self.name, self.detail


@dataclass(frozen=True)
class Resize:
    """A line of VLLM_DEBUG_WORKSPACE: the arena of a slot was replaced. `by_hand`: a line of
    somebody's patch, which lets a locked arena grow."""

    origin: Origin
    file: str | None
    line: int | None
    function: str | None
    before: PrintedSize
    after: PrintedSize
    ubatch: int | None = None
    lane: int | None = None
    every_ubatch: int | None = None
    by_hand: bool = False


@dataclass(frozen=True)
class LockState:
    """A line of VLLM_DEBUG_WORKSPACE: locked or unlocked, exact sizes in bytes by slot."""

    origin: Origin
    locked: bool
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class KvMemory:
    """`Available KV cache memory`: from here on the KV cache size is decided."""

    origin: Origin
    text: str


@dataclass(frozen=True)
class Fault:
    """A CUDA or HIP error that a moved or grown arena can cause."""

    kind: FaultKind
    origin: Origin
    tried: str | None = None
    frames: tuple[Frame, ...] = ()
    free: str | None = None

    @property
    def tried_bytes(self) -> int | None:
        """What was asked of the allocator, as far as it was printed."""
        return printed_size(self.tried).bytes if self.tried else None

    @property
    def free_bytes(self) -> int | None:
        """What the device had free, as far as it was printed."""
        return printed_size(self.free).bytes if self.free else None


@dataclass(frozen=True)
class StepDump:
    """The scheduler's last step: tokens of the step, and (scheduled, computed) by request."""

    origin: Origin
    total_tokens: int | None
    scheduled: tuple[int, ...]
    computed: tuple[int, ...]
    draft_tokens: int = 0


Fact = (
    Refusal
    | Resize
    | LockState
    | KvMemory
    | Fault
    | StepDump
    | Captured
    | Mention
    | Stage
    | Relative
)


@dataclass
class Text:
    """All facts of one input. `mentions` counts talk about the message without facts, `part` is
    the comment or the member of an archive that it is."""

    path: str
    part: str = ""
    refusals: list[Refusal] = field(default_factory=list)
    resizes: list[Resize] = field(default_factory=list)
    locks: list[LockState] = field(default_factory=list)
    kv: list[KvMemory] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    steps: list[StepDump] = field(default_factory=list)
    captured: list[Captured] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    relatives: list[Relative] = field(default_factory=list)
    mentions: int = 0
    v2_runner: bool = False
    notes: list[str] = field(default_factory=list)


_UNITS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_NUMBER: Final = r"\d[\d,]*(?:\.\d+)?"
SIZE: Final = rf"(?P<{{0}}>{_NUMBER}(?:[KMGTkmgt]i?[Bb]|bytes))"
# matches: 'turboquant_attn.py:747:_continuation_prefill'
SITE: Final = re.compile(
    r"(?P<file>[\w.\-]+\.pyc?)(?::(?P<line>\d+))?(?::(?P<function>[\w.<>]+))?$"
)


def origin_at(squeezed: Squeezed, position: int, stream: str) -> Origin:
    """The line that holds `position`, in the process that `stream` names."""
    line = squeezed.line(position)
    return Origin(line.number, stream, part=line.part)


def printed_size(text: str) -> PrintedSize:
    """A printed size. The window of bytes is half a unit of its last digit to each side.

    A comma with three digits after it separates thousands, with one or two it is a decimal's.
    """
    # matches: "9.94MB"
    number, unit = re.fullmatch(rf"({_NUMBER})([KMGTkmgt]i?[Bb]|bytes)", text).groups()  # type: ignore[union-attr]
    # matches: "9,94"
    comma = re.fullmatch(r"\d+,\d{1,2}", number)
    number = number.replace(",", "." if comma else "")
    if unit == "bytes":
        size = int(float(number))
        return PrintedSize(f"{size:,} bytes", size, size, size)
    scale = _UNITS[unit[0].upper()]
    half = 0.5 * 10.0 ** -len(number.partition(".")[2]) * scale
    middle = float(number) * scale
    shown = f"{number} {text[text.index(unit) :]}"
    return PrintedSize(shown, round(middle), max(0, int(middle - half)), int(middle + half) + 1)
