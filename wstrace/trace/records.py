"""Record types of a trace file, one JSON object a line.

Every record has a tag `t`. Sizes are bytes, addresses are integers, `ns` is
`time.monotonic_ns()` of the process (the header holds a pair of clocks to convert it).
Readers ignore fields that they do not know, so that fields can be added; a field never
changes its meaning within one `FORMAT`.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from wstrace.trace.site_key import SiteKey
from wstrace.vllm.phases import Phase as Phase

FORMAT: Final = 1

Window = Literal["counted", "not counted", "unknown"]
"""Whether KV sizing pays for an arena."""

Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""What a recorder writes; a larger number is no record, and would be no time and no size."""

Limit = int | str | bool | list[int] | None


class Slot(msgspec.Struct, frozen=True, order=True, gc=False):
    """(ubatch, lane): the owner of one arena."""

    ubatch: Int = 0
    lane: Int = 0

    @property
    def text(self) -> str:
        """`ubatch 0, lane 1`."""
        return f"ubatch {self.ubatch}, lane {self.lane}"


class Ranks(msgspec.Struct, frozen=True, order=True, omit_defaults=True, gc=False):
    """Where a worker stands in each parallel group; None where unknown."""

    dp: Int | None = None
    tp: Int | None = None
    pp: Int | None = None
    ep: Int | None = None
    dcp: Int | None = None
    rank: Int | None = None
    node: Int | None = None
    pcp: Int | None = None


class Record(msgspec.Struct, tag_field="t", omit_defaults=True, kw_only=True, gc=False):
    """Base of all records."""

    ns: Int = 0


class Header(Record, tag="header", kw_only=True, gc=False):
    """First record of every file: which process wrote it, with what.

    `lost`: why records of this process are missing: recording stopped here (a full disk), or
    an earlier file of it is gone. Blank, and the one field that is written in place.
    """

    format: Int
    run: str
    wstrace: str
    vllm: str | None = None
    torch: str | None = None
    python: str = ""
    host: str = ""
    pid: Int = 0
    role: str = ""
    wall_ns: Int = 0
    argv: list[str] = []
    on_growth: str = "raise"
    reserve: str | None = None
    parent: str | None = None
    lost: str = ""

    @property
    def wall_offset(self) -> int:
        """Nanoseconds to add to a record's `ns` (monotonic) for its time since 1970."""
        return self.wall_ns - self.ns


class WorkerInit(Record, tag="worker", kw_only=True, gc=False):
    """Written in init_device by every worker: ranks, group sizes and the config's limits.

    `limits` are the names that reserve formulas and bounds may use; a later `limits`
    record replaces the values it names. `native`: seen requests are looked up in C.
    """

    ranks: Ranks
    world: Ranks
    limits: dict[str, Limit]
    runner: str = ""
    digest: str = ""
    native: bool = False


class Limits(Record, tag="limits", kw_only=True, gc=False):
    """Config values that changed after init_device (auto-fit, graph sizes, block size)."""

    limits: dict[str, Limit]


class Hook(Record, tag="hook", kw_only=True, gc=False):
    """A hook that was set, or that stood down and why."""

    name: str
    set: bool
    why: str = ""


class Manager(Record, tag="manager", kw_only=True, gc=False):
    """A WorkspaceManager was made (`event` init) or dropped (reset).

    vLLM has one in a worker. Where an earlier one goes on to answer after another was made,
    requests, growths, failures and locks name their own; what a lock and a warm-up hold for is
    followed by worker, so such a run is inconclusive, and a refusal in it is told as any other.
    """

    event: Literal["init", "reset"] = "init"
    id: Int = 0
    num_ubatches: Int = 1
    num_lanes: Int = 1
    device: str = ""


class PhaseChange(Record, tag="phase", kw_only=True, gc=False):
    """The process entered `phase`, or is still in it where a method raised.

    `error`: what the method named in `why` raised, type and text.
    """

    phase: Phase
    step: Int = 0
    why: str = ""
    error: str = ""


class ScheduledRequest(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One scheduled request of a step, as the scheduler saw it. No ids, no tokens."""

    scheduled: Int
    computed: Int
    new: bool = False
    draft: Int = 0


class Step(msgspec.Struct, omit_defaults=True, gc=False):
    """Scheduler state of the step in which something happened."""

    index: Int
    kind: Literal["real", "dummy", "idle", "warmup"] = "real"
    total_tokens: Int = 0
    num_reqs: Int = 0
    draft_tokens: Int = 0
    requests: list[ScheduledRequest] = []


class Spec(msgspec.Struct, frozen=True, gc=False):
    """One buffer of a get_simultaneous call."""

    shape: list[Int]
    dtype: str
    bytes: Int


class Leaf(msgspec.Struct, omit_defaults=True, gc=False):
    """A name of a provenance formula.

    kind `constant`: cannot change while this config runs (attributes set in a constructor,
    literals, config fields). `driver`: bound by source to scheduler quantity `role`.
    `unbound`: a number whose origin the slicer could not follow; `why` says where it stopped.
    """

    name: str
    kind: Literal["constant", "driver", "unbound"]
    value: Int | None = None
    role: str | None = None
    source: str = ""
    where: str = ""
    why: str = ""


class Provenance(msgspec.Struct, omit_defaults=True, gc=False):
    """Where a shape came from: a closed formula for the request's bytes, or where it stopped.

    `formula` is in the expression language over the names of `leaves`. `statements` are the
    lines of source that made the numbers, innermost first, as `file:line: text`. Where a
    condition chose between shapes, `arms` are the alternatives and `formula` their maximum.
    All of it belongs to one way to the request: `callers` are the calls that were followed,
    innermost first, as `file:line:qualified name`, and `types` the class of `self` and of the
    other objects that were read there, as `name: class`. `others` are calls of the same
    functions that the source has elsewhere, as `file:line:function that is called`.
    """

    formula: str | None = None
    arms: list[str] = []
    leaves: list[Leaf] = []
    statements: list[str] = []
    stopped: str | None = None
    callers: list[str] = []
    types: list[str] = []
    others: list[str] = []


class Site(Record, tag="site", kw_only=True, gc=False):
    """A call site, written once a process and given a small id.

    The identity is (file, function): `file` is the path as its module names it
    (`vllm/v1/...`, the same on every machine), `function` the qualified name. `line` is only
    a hint. `caller` is vLLM's own caller string.
    """

    id: Int
    file: str
    function: str
    line: Int
    caller: str
    path: str = ""

    @property
    def key(self) -> SiteKey:
        """Its identity."""
        return SiteKey(self.file, self.function)


class Request(Record, tag="request", kw_only=True, gc=False):
    """One novel get_simultaneous call (new site, bytes, slot, phase or maximum).

    A request for scratch; what the scheduler calls a request is a ScheduledRequest.
    `classes` are the classes of the objects that shape it, each with its bases: `caller`, and
    of a fused MoE layer `fused_experts` and `prepare_finalize`.
    """

    site: Int
    slot: Slot
    bytes: Int
    arena: Int
    phase: Phase
    step: Step | None = None
    generation: Int = 0
    address: Int = 0
    locked: bool = False
    capturing: bool = False
    graph: Int | None = None
    stream: Int = 0
    cudagraph_mode: str = ""
    layer: str = ""
    specs: list[Spec] = []
    stack: list[str] = []
    provenance: Provenance | None = None
    thread: Int = 0
    manager: Int = 0
    classes: dict[str, list[str]] = {}


class Growth(Record, tag="growth", kw_only=True, gc=False):
    """An arena was replaced. `after` is its new size; `forced` marks growth that the lock
    would have refused and `--on-growth grow` allowed. `site` is None for a reserve."""

    site: Int | None = None
    slot: Slot
    before: Int
    after: Int
    phase: Phase
    step: Step | None = None
    generation: Int = 0
    address: Int = 0
    old_address: Int = 0
    locked: bool = False
    capturing: bool = False
    forced: bool = False
    reserve: bool = False
    kept_bytes: Int = 0
    window: Window = "unknown"
    manager: Int = 0


class Failure(Record, tag="failure", kw_only=True, gc=False):
    """vLLM refused: a locked arena, a missing persistent resource, a layer's own check."""

    kind: Literal["arena", "persistent", "layer", "memory"]
    site: Int | None = None
    slot: Slot
    required: Int | None = None
    arena: Int | None = None
    phase: Phase
    step: Step | None = None
    key: str = ""
    layer: str = ""
    survived: bool = False
    text: str = ""
    manager: Int = 0


def _one_each(slots: list[Slot], values: list[int], name: str) -> None:
    """ValueError, which a decoder makes a ValidationError, unless each slot has one value."""
    if len(slots) != len(values):
        raise ValueError(f"{len(slots)} slots and {len(values)} {name}")


class Lock(Record, tag="lock", kw_only=True, gc=False):
    """lock() or unlock() was called; `sizes` are the arenas' bytes by slot."""

    event: Literal["lock", "unlock"]
    slots: list[Slot]
    sizes: list[Int]
    phase: Phase
    step: Int = 0
    manager: Int = 0

    def __post_init__(self) -> None:
        _one_each(self.slots, self.sizes, "sizes")


class Capture(Record, tag="capture", kw_only=True, gc=False):
    """A CUDA graph capture ended (or its graph was released, event `release`).

    `generations` are those of the slots requested while capturing, by slot order of `slots`.
    A throwaway graph (profile_cudagraph_memory) never serves.
    """

    event: Literal["end", "release"] = "end"
    graph: Int = 0
    throwaway: bool = False
    slots: list[Slot] = []
    generations: list[Int] = []

    def __post_init__(self) -> None:
        _one_each(self.slots, self.generations, "generations")


class Persistent(Record, tag="persistent", kw_only=True, gc=False):
    """A persistent resource was made in a slot."""

    site: Int | None = None
    slot: Slot
    key: str
    phase: Phase
    bytes: Int | None = None


class View(Record, tag="view", kw_only=True, gc=False):
    """`--check-views`: a view taken at `generation` outlived a growth or the next request."""

    site: Int
    slot: Slot
    generation: Int
    now: Int
    why: Literal["growth", "next request"]
    bytes: Int = 0
    phase: Phase = "serving"


class Ordering(Record, tag="ordering", kw_only=True, gc=False):
    """Two sites asked in one slot from two CUDA streams, and whether an order was seen.

    Each pair of sites is written once for each answer. `first` asked before `second`; the
    stacks are the innermost frames, as in a request.
    """

    slot: Slot
    first: Int
    second: Int
    ordered: bool
    streams: list[Int] = msgspec.field(default_factory=list)
    first_stack: list[str] = msgspec.field(default_factory=list)
    second_stack: list[str] = msgspec.field(default_factory=list)
    phase: Phase = "serving"
    step: Int = 0
    capturing: bool = False


class Count(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Calls of one (site, slot) in one phase so far, and the largest request among them."""

    site: Int
    slot: Slot
    phase: Phase
    calls: Int
    max_bytes: Int


class Counts(Record, tag="counts", kw_only=True, gc=False):
    """Cumulative counters that changed since the last such record; at most one a second.

    `max_computed` is the most tokens already computed of any scheduled request,
    `max_continued` of one that was still prefilling.
    """

    step: Int
    steps_real: Int = 0
    max_tokens: Int = 0
    max_reqs: Int = 0
    max_computed: Int = 0
    max_continued: Int = 0
    counts: list[Count] = []


class Memory(Record, tag="memory", kw_only=True, gc=False):
    """What KV sizing decided in this worker, in bytes, read in the worker. `window`: what it
    had measured, in words; a trace without it does not tell growth in the graph estimate."""

    available_kv_bytes: Int | None = None
    fixed_kv: str | None = None
    weights_bytes: Int | None = None
    num_gpu_blocks: Int | None = None
    block_size: Int | None = None
    bytes_per_block: Int | None = None
    free_bytes: Int | None = None
    total_bytes: Int | None = None
    window: str = ""


class ReserveEvent(Record, tag="reserve", kw_only=True, gc=False):
    """A reserve config met this worker: applied in every slot, refused, or not needed.

    `config` is the reserve config as JSON, so that the next one can keep its sites.
    """

    event: Literal["applied", "refused", "satisfied"]
    slots: list[Slot] = []
    sizes: list[Int] = []
    phase: Phase = "profile"
    why: str = ""
    path: str = ""
    policy: str = ""
    config: str = ""


class Truncated(Record, tag="truncated", kw_only=True, gc=False):
    """A cap was reached: later novelties of `what` are only kept as per-site maxima."""

    what: str
    limit: Int


class NearLimit(Record, tag="near", kw_only=True, gc=False):
    """A step was admitted that brings a site near its arena (`--warn-at`): by its formula it
    needs `bytes` of `arena`, and at most `worst`. `site` is `file:function`; once a site."""

    site: str
    bytes: Int
    arena: Int
    worst: Int = 0
    step: Step | None = None


class Note(Record, tag="note", kw_only=True, gc=False):
    """Something the recorder wants a reader to know. `piece`: of an error of its own, the piece
    of the recorder that failed."""

    text: str
    piece: str = ""

    @property
    def failed_piece(self) -> str:
        """`piece`; an older trace has it in the text only, `recorder: PIECE: ERROR`."""
        who, _, rest = self.text.partition(": ")
        return self.piece or (rest.partition(": ")[0] if who == "recorder" else "")


class End(Record, tag="end", kw_only=True, gc=False):
    """The process ended in order."""

    steps: Int = 0


AnyRecord = (
    Header
    | WorkerInit
    | Limits
    | Hook
    | Manager
    | PhaseChange
    | Site
    | Request
    | Growth
    | Failure
    | Lock
    | Capture
    | Persistent
    | View
    | Ordering
    | Counts
    | Memory
    | ReserveEvent
    | Truncated
    | NearLimit
    | Note
    | End
)
