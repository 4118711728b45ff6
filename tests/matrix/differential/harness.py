"""vLLM's own shape code against wstrace's bounds: no state may lie above a proved one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from tests.matrix.differential.engines import Engine, State, draw_engine, draw_states
from tests.matrix.differential.moe import has_prefill_context
from tests.matrix.differential.released import Release, request_bytes
from tests.matrix.differential.released import Spec as Asked
from tests.matrix.differential.scene import Scene, resolved
from tests.matrix.differential.scenes import scenes
from wstrace.bounds.bound import Bound
from wstrace.bounds.by_rule import by_rule
from wstrace.bounds.evidence import Site
from wstrace.trace.records import Limit, Request, Slot, Spec, Step
from wstrace.vllm.limits import LIMIT_NAMES

Specs = tuple[Asked, ...]
ALLOWED = 1.25
"""A proved bound up to this many times the truth is called close."""
_SEEN = 3
_CANNOT_PLAY = (LookupError, AssertionError, AttributeError, TypeError)
"""A scene's inputs are not what this release reads: told as not run, never as passed."""


@dataclass(frozen=True)
class Low:
    """A state above a proved bound: bytes asked, bytes promised, and the engine."""

    release: str
    scene: str
    asked: int
    promised: int
    rule: str | None
    engine: Engine

    def told(self) -> str:
        """One line for a person who has to find it again."""
        shown = {**self.engine.numbers, **self.engine.words}
        return (
            f"{self.release} {self.scene}: asked {self.asked:,}, {self.rule} proved "
            f"{self.promised:,} ({self.asked / max(1, self.promised):.4f}x); {shown}"
        )


@dataclass
class Tally:
    """What a scene's engines and states showed; `rules`: the sites whose rule proved them."""

    engines: int = 0
    states: int = 0
    proved: int = 0
    ratios: list[float] = field(default_factory=list)
    lows: list[Low] = field(default_factory=list)
    rules: set[str] = field(default_factory=set)
    unplayed: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    refused: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    @property
    def played(self) -> bool:
        """At least one engine came to the request."""
        return self.engines > 0

    @property
    def exact(self) -> int:
        """Engines whose proved bound is the largest request to the byte."""
        return sum(ratio == 1 for ratio in self.ratios)

    @property
    def close(self) -> int:
        """Engines whose proved bound is at most `ALLOWED` times the largest request."""
        return sum(ratio <= ALLOWED for ratio in self.ratios)


def run(
    releases: Iterable[Release], engines: int, states: int, seed: int = 0
) -> dict[tuple[str, str], Tally]:
    """Play `engines` random engines with `states` random steps each at every scene."""
    tallies: dict[tuple[str, str], Tally] = {}
    for release in releases:
        for scene in scenes(release):
            random = Random(f"{seed}.{release.version}.{scene.name}")
            tally = tallies.setdefault((release.version, scene.name), Tally())
            for _ in range(engines):
                _one(release, scene, random, states, tally)
    return tallies


def held(release: Release, proofs: int = 2, most: int = 60, states: int = 6) -> frozenset[str]:
    """What a short run holds against the rules: FILE:FUNCTION, and classes of experts.

    Held is a scene of which `proofs` engines were played with a proved bound, and no state lay
    above one; `most` engines are drawn for it. A scene that cannot be played holds nothing.
    """
    found: dict[str, bool] = {}
    for scene in scenes(release):
        random, tally = Random(f"held.{release.version}.{scene.name}"), Tally()
        for _ in range(most):
            _one(release, scene, random, states, tally)
            if tally.lows or tally.proved >= proofs:
                break
        name = scene.experts or f"{scene.file}:{scene.function}"
        found[name] = found.get(name, True) and tally.proved >= proofs and not tally.lows
    return frozenset(name for name, good in found.items() if good)


def _one(release: Release, scene: Scene, random: Random, states: int, tally: Tally) -> None:
    drawn = draw_engine(random, prefill_context=has_prefill_context(release))
    engine = resolved(release, scene, drawn)
    try:
        played = list(_played(release, scene, engine, draw_states(engine, random, states)))
    except _CANNOT_PLAY as why:
        tally.unplayed[str(why) or "vLLM's own assertion"] += 1
        return
    if not played:
        return
    tally.engines += 1
    tally.states += len(played)
    most = max(request_bytes(specs) for _, specs in played)
    found = _bound(release, scene, engine, random.sample(played, min(_SEEN, len(played))))
    if isinstance(found, str):
        tally.refused[found] += 1
        return
    tally.proved += 1
    tally.rules |= {found.known_site} if found.known_site else set()
    tally.ratios.append((found.bytes or 0) / most)
    if most > (found.bytes or 0):
        low = Low(release.version, scene.name, most, found.bytes or 0, found.known_site, engine)
        tally.lows.append(low)


def _played(
    release: Release, scene: Scene, engine: Engine, states: Sequence[State]
) -> Iterator[tuple[State, Specs]]:
    for state in states:
        release.provide({})
        specs = scene.play(release, engine, state)
        if specs is not None and request_bytes(specs):
            yield state, specs


def _bound(
    release: Release, scene: Scene, engine: Engine, seen: Sequence[tuple[State, Specs]]
) -> Bound | str:
    """The bound of a trace that saw these requests; why there is none of grade proved."""
    told: dict[str, Limit] = {n: v for n, v in engine.numbers.items() if n in LIMIT_NAMES}
    told |= {n: v for n, v in engine.words.items() if n in LIMIT_NAMES}
    told["cudagraph_capture_sizes"] = list(engine.captured)
    classes = {
        "fused_experts": scene.experts,
        "caller": scene.caller,
        "prepare_finalize": scene.dispatch(release, engine),
    }
    requests = tuple(
        _request(classes, index, state, specs) for index, (state, specs) in enumerate(seen)
    )
    limits = {**told, **scene.numbers(engine)}
    found = by_rule(Site(scene.file, scene.function, requests, limits, release.version))
    if isinstance(found, Bound):
        return found if found.grade == "proved" else found.why
    return found.why or "no rule"


def _request(classes: dict[str, str], index: int, state: State, specs: Specs) -> Request:
    size = request_bytes(specs)
    step = Step(
        index=index, total_tokens=state.tokens, num_reqs=len(state.requests),
        requests=list(state.requests),
    )  # fmt: skip
    buffers = [
        Spec([int(d) for d in shape], str(dtype), request_bytes(((shape, dtype),)))
        for shape, dtype in specs
    ]
    return Request(
        site=1, slot=Slot(), bytes=size, arena=size, phase="serving", locked=True, step=step,
        specs=buffers,
        classes={name: [cls] for name, cls in classes.items() if cls},
    )  # fmt: skip
