"""What is run against each version, in a process of its own. Each returns plain facts.

A scenario writes its trace to the folder that it is given; the tests read both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tests.matrix.harness import (
    MIB,
    Engine,
    ask,
    config,
    module,
    other_ask,
    recorded,
    ubatch,
    workspace,
)
from wstrace.recorder import capture, growth
from wstrace.recorder.config import read_limits
from wstrace.recorder.live import Live
from wstrace.reserve.config import (
    Model,
    ReserveConfig,
    SiteReserve,
    SlotReserve,
    dumps,
    layout,
    model_digest,
)

Facts = dict[str, Any]
SCENARIOS: dict[str, Callable[[Path], Facts]] = {}


def scenario(function: Callable[[Path], Facts]) -> Callable[[Path], Facts]:
    """Register a scenario under its name."""
    SCENARIOS[function.__name__] = function
    return function


def caught(call: Callable[[], Any]) -> str:
    """The text of the AssertionError that `call` raises, "" when it raises none."""
    try:
        call()
    except AssertionError as error:
        return str(error)
    return ""


def arenas() -> list[int]:
    """Bytes of each slot of the current manager, 0 where there is no arena."""
    manager = workspace().current_workspace_manager()
    return [0 if t is None else t.numel() for t in manager._current_workspaces]


def addresses() -> list[int]:
    """Addresses of the arenas that exist."""
    manager = workspace().current_workspace_manager()
    return [t.data_ptr() for t in manager._current_workspaces if t is not None]


def lock() -> None:
    """Lock as `capture_model` does."""
    workspace().lock_workspace()


def captured(live: Live, request: Callable[[], Any]) -> None:
    """A graph capture in which `request` is made; the flag is set here, there is no GPU."""
    capture.began(live)
    request()
    capture.ended(live)


@dataclass
class Kit:
    """A scripted engine: 1 MiB in profile_run, captured and locked in capture_model."""

    live: Live
    locks: bool = True
    script: dict[str, Callable[[], Any]] = field(default_factory=dict)

    def engine(self, slots: tuple[int, ...] = (), v2: bool = False, **script: Any) -> Engine:
        """The started engine."""
        plain = {"profile_run": lambda: ask(MIB), "capture_model": self.capture_model}
        return Engine(plain | script, v2=v2, slots=slots).start()

    def capture_model(self) -> None:
        """One graph, then the lock where this engine locks."""
        captured(self.live, lambda: ask(MIB))
        if self.locks:
            lock()


@scenario
def hooks(folder: Path) -> Facts:
    """Everything is wrapped, for both runners, and comes off again."""
    manager = workspace().WorkspaceManager
    before = dict(vars(manager))
    reset = workspace().reset_workspace_manager
    with recorded(folder) as live:
        Kit(live).engine()
        Kit(live).engine(v2=True)
        states = {name: hook.why for name, hook in live.hooks.states.items()}
    same = {name: vars(manager)[name] is value for name, value in before.items()}
    return {
        "states": states,
        "restored": all(same.values()) and workspace().reset_workspace_manager is reset,
        "manager": sorted(name for name in before if not name.startswith("__")),
        "lanes": hasattr(workspace(), "use_workspace_lane"),
    }


@scenario
def life(folder: Path) -> Facts:
    """A whole life: profile, estimate, KV, warm-up, capture, lock, serving, shutdown."""
    with recorded(folder) as live:
        engine = Kit(live).engine(
            load_model=lambda: ask(256),
            profile_cudagraph_memory=lambda: captured(live, lambda: ask(2 * MIB)),
            initialize_kv_cache=lambda: ask(3 * MIB),
            warmup_kernels=lambda: ask(512),
            post_lock=lambda: engine_dummy(),
            _dummy_run=lambda: ask(768),
            execute_model=lambda: ask(1024),
            shutdown=lambda: workspace().reset_workspace_manager(),
        )
        engine.step(a=5, b=7)
        engine.wrapper.worker.sample_tokens(None)
        engine.wrapper.worker.execute_dummy_batch()
        engine.wrapper.shutdown()
        return {"phase": live.phases.current, "manager_gone": live.manager is None}


@scenario
def early(folder: Path) -> Facts:
    """An arena made right after the manager, in init_device."""
    with recorded(folder) as live:
        Kit(live).engine(init_device=lambda: ask(MIB))
        return {}


@scenario
def sleeping(folder: Path) -> Facts:
    """sleep() and wake_up() between two steps."""
    with recorded(folder) as live:
        engine = Kit(live).engine(execute_model=lambda: ask(1024))
        engine.step(a=1)
        engine.wrapper.worker.sleep(1)
        engine.wrapper.worker.wake_up()
        engine.step(b=1)
        return {}


@scenario
def remade(folder: Path) -> Facts:
    """The graphs are dropped, the manager is reset and made anew while serving."""
    with recorded(folder) as live:
        engine = Kit(live).engine(execute_model=lambda: ask(1024))
        engine.step(a=1)
        capture.released(live, live.capture.graph)
        workspace().reset_workspace_manager()
        workspace().init_workspace_manager(torch.device("cpu"))
        engine.script["execute_model"] = lambda: [ask(size) for size in (MIB, 2 * MIB)]
        engine.step(b=1)
        return {}


def engine_dummy() -> None:
    """The dummy run that V1 makes after the lock."""
    ask(768)


@scenario
def two_growths(folder: Path) -> Facts:
    """Two growths with their addresses, then a request that fits."""
    with recorded(folder) as live:
        sizes = []

        def profile() -> None:
            for size in (MIB, 3 * MIB, 2 * MIB):
                ask(size)
                sizes.append((arenas()[0], addresses()[0]))

        Kit(live).engine(profile_run=profile)
        return {"seen": sizes}


@scenario
def ubatches(folder: Path) -> Facts:
    """Which slots a growth of ubatch 1 resizes."""
    with recorded(folder) as live:

        def profile() -> None:
            with ubatch(1):
                ask(MIB)

        Kit(live).engine((2,), profile_run=profile, capture_model=lock)
        return {"sizes": arenas()[:2]}


@scenario
def lanes(folder: Path) -> Facts:
    """Two lanes: the main one warmed, the draft lane first asked while serving."""
    if not hasattr(workspace(), "use_workspace_lane"):
        return {"supported": False}
    with recorded(folder) as live:
        engine = Kit(live).engine((1, 2))
        error = ""

        def draft() -> None:
            nonlocal error
            with workspace().use_workspace_lane(1):
                error = caught(lambda: other_ask(512))

        engine.script |= {"execute_model": lambda: ask(512), "sample_tokens": draft}
        engine.step(a=3)
        engine.wrapper.worker.sample_tokens(None)
        return {"supported": True, "error": error, "sizes": arenas()}


@scenario
def dbo(folder: Path) -> Facts:
    """Ubatch 1 is never warmed where a growth resizes its own slot only (from 0.20)."""
    with recorded(folder) as live:
        engine = Kit(live).engine((2,))

        def both() -> None:
            with ubatch(0):
                ask(512)
            with ubatch(1):
                errors.append(caught(lambda: ask(512)))

        errors: list[str] = []
        engine.script["execute_model"] = both
        engine.step(a=3)
        return {"error": errors[0]}


@scenario
def relock(folder: Path) -> Facts:
    """Elastic EP: graphs dropped, unlock, profile run, warm-up and capture again, lock."""
    manager = workspace().WorkspaceManager
    if not hasattr(manager, "unlock"):
        return {"supported": False}
    with recorded(folder) as live:
        engine = Kit(live).engine(execute_model=lambda: ask(1024))
        engine.step(a=1)
        capture.released(live, live.capture.graph)
        workspace().unlock_workspace()
        unlocked = live.phases.current
        engine.script["_dummy_run"] = lambda: ask(4 * MIB)
        engine.wrapper.worker.model_runner._dummy_run(256, is_profile=True)
        engine.wrapper.worker.compile_or_warm_up_model()
        lock()
        engine.script["execute_model"] = lambda: ask(2 * MIB)
        engine.step(a=1)
        return {"supported": True, "unlocked": unlocked, "phase": live.phases.current}


@scenario
def escapes(folder: Path) -> Facts:
    """WS101, WS102 and WS103, each refused by vLLM or masked by the arena."""
    with recorded(folder) as live:
        engine = Kit(live).engine(warmup_kernels=lambda: small_ask(256))
        texts: list[str] = []

        def serve() -> None:
            small_ask(1024)
            texts.append(caught(lambda: other_ask(2 * MIB)))
            texts.append(caught(lambda: ask(3 * MIB)))

        engine.script["execute_model"] = serve
        engine.step(a=3)
        return {"texts": texts}


def small_ask(size: int) -> torch.Tensor:
    """A third site."""
    (view,) = workspace().current_workspace_manager().get_simultaneous(((size,), torch.uint8))
    return view


@scenario
def error_text(folder: Path) -> Facts:
    """vLLM's message from one and the same line, without and with the recorder."""
    manager = workspace()

    def refused() -> str:
        manager.init_workspace_manager(torch.device("cpu"))
        lock()
        return caught(lambda: ask(2 * MIB))

    texts = []
    for attach in (False, True):
        if attach:
            with recorded(folder) as live:
                Kit(live).engine()
                texts.append(refused())
        else:
            texts.append(refused())
    return {"texts": texts, "line": ask.__code__.co_firstlineno + 2}


@scenario
def fullgraph(folder: Path) -> Facts:
    """torch.compile(fullgraph=True) around a request, without and with the recorder."""

    def attempt() -> str:
        torch._dynamo.reset()
        manager = workspace().current_workspace_manager()

        def forward(x: torch.Tensor) -> torch.Tensor:
            (view,) = manager.get_simultaneous(((16,), torch.float32))
            return x + view.zero_()

        try:
            torch.compile(forward, fullgraph=True, backend="eager")(torch.ones(16))
        except Exception as error:
            return type(error).__name__
        return ""

    workspace().init_workspace_manager(torch.device("cpu"))
    ask(1024)
    plain = attempt()
    with recorded(folder) as live:
        Kit(live).engine()
        return {"plain": plain, "wrapped": attempt()}


@scenario
def grow(folder: Path) -> Facts:
    """`--on-growth grow`: the captured generation stays alive; no memory, vLLM's error."""
    with recorded(folder, on_growth="grow") as live:
        engine = Kit(live).engine(
            (2,), profile_run=warm_both, capture_model=lambda: Kit(live).capture_model()
        )
        before, old = arenas()[:2], addresses()[0]
        engine.script["execute_model"] = lambda: other_ask(2 * MIB)
        engine.step(a=3)
        after, moved = arenas()[:2], addresses()[0]
        kept = growth.kept_bytes()
        empty = torch.empty

        def no_memory(*args: Any, **kwargs: Any) -> Any:
            raise torch.OutOfMemoryError("no memory, says the test")

        def starve() -> None:
            torch.empty = no_memory
            try:
                texts.append(caught(lambda: ask(8 * MIB)))
            finally:
                torch.empty = empty

        texts: list[str] = []
        engine.script["execute_model"] = starve
        engine.step(a=3)
        return {
            "before": before,
            "after": after,
            "moved": moved != old,
            "kept": kept,
            "text": texts[0],
            "left": arenas()[:2],
        }


def warm_both() -> None:
    """A request on each of two ubatches."""
    for index in (0, 1):
        with ubatch(index):
            ask(MIB)


@scenario
def persistent(folder: Path) -> Facts:
    """A keyed resource: made in warm-up, then another one refused after the lock."""
    if not hasattr(workspace().WorkspaceManager, "get_persistent_resource"):
        return {"supported": False}

    def resource(key: str) -> Any:
        manager = workspace().current_workspace_manager()
        return manager.get_persistent_resource((key, 4), lambda: torch.zeros(4))

    texts: dict[str, str] = {}
    with recorded(folder / "raise") as live:
        engine = Kit(live).engine(profile_run=lambda: resource("known"))
        engine.script["execute_model"] = lambda: (
            resource("known"),
            texts.update(wrapped=caught(lambda: resource("missing"))),
        )
        engine.step(a=3)
    workspace().init_workspace_manager(torch.device("cpu"))
    lock()
    texts["plain"] = caught(lambda: resource("missing"))
    with recorded(folder / "grow", on_growth="grow") as live:
        engine = Kit(live).engine(profile_run=lambda: resource("known"))
        made: list[Any] = []
        engine.script["execute_model"] = lambda: made.append(resource("missing"))
        engine.step(a=3)
    return {"supported": True, "texts": texts, "grown": list(made[0].shape)}


@scenario
def scratch(folder: Path) -> Facts:
    """MoEPermuteScratch: its own check of the lock."""
    owner = module("model_executor.layers.fused_moe.moe_permute_unpermute")
    if not hasattr(getattr(owner, "MoEPermuteScratch", None), "reserve"):
        return {"supported": False}
    if not hasattr(torch.ops._moe_C, "moe_permute_sort_workspace_size"):
        torch.library.define("_moe_C::moe_permute_sort_workspace_size", "(int a, int b) -> int")
        torch.library.impl(
            "_moe_C::moe_permute_sort_workspace_size", "default", lambda rows, experts: 64
        )

    def made() -> Any:
        return owner.MoEPermuteScratch(4, 4, torch.device("cpu"))

    texts: dict[str, str] = {}
    with recorded(folder / "raise") as live:
        buffers = made()
        engine = Kit(live).engine(profile_run=lambda: buffers.reserve(8))
        engine.script["execute_model"] = lambda: (
            buffers.reserve(8),
            texts.update(wrapped=caught(lambda: buffers.reserve(32))),
        )
        engine.step(a=3)
    plain = made()
    workspace().init_workspace_manager(torch.device("cpu"))
    plain.reserve(8)
    lock()
    texts["plain"] = caught(lambda: plain.reserve(32))
    with recorded(folder / "grow", on_growth="grow") as live:
        grown = made()
        engine = Kit(live).engine(profile_run=lambda: grown.reserve(8))
        engine.script["execute_model"] = lambda: grown.reserve(32)
        engine.step(a=3)
        locked = workspace().current_workspace_manager().is_locked()
    return {
        "supported": True,
        "texts": texts,
        "grown": grown.max_expanded_rows,
        "locked": locked,
    }


@scenario
def reserve(folder: Path) -> Facts:
    """A reserve config of 5 MiB: in every slot at the start of profile_run."""
    slots = (2, 2) if hasattr(workspace(), "use_workspace_lane") else (2,)
    path = folder / "reserve.yaml"
    path.write_text(dumps(reserve_config(5 * MIB)))
    seen: list[list[int]] = []
    with recorded(folder, reserve=str(path)) as live:

        def profile() -> None:
            seen.append(arenas())
            ask(MIB)

        Kit(live).engine(slots, profile_run=profile)
        contexts = module("v1.worker.ubatching")._THREAD_ID_TO_CONTEXT
        return {"slots": list(slots), "at_profile": seen[0], "ubatch_threads": len(contexts)}


@scenario
def reserve_again(folder: Path) -> Facts:
    """After unlock with a longer max_model_len: 1280 bytes a token."""
    if not hasattr(workspace().WorkspaceManager, "unlock"):
        return {"supported": False}
    path = folder / "reserve.yaml"
    path.write_text(dumps(reserve_config(5 * MIB, "round256(max_model_len * 1280)")))
    seen: list[int] = []
    with recorded(folder, reserve=str(path)) as live:
        note = lambda: seen.append(arenas()[0])  # noqa: E731
        engine = Kit(live).engine(profile_run=note, capture_model=lock)
        engine.wrapper.vllm_config.model_config.max_model_len = 5734
        workspace().unlock_workspace()
        engine.script["_dummy_run"] = note
        engine.wrapper.worker.model_runner._dummy_run(256, is_profile=True)
        return {"at_first_profile": seen[0], "at_second_profile": seen[1]}


def reserve_config(size: int, formula: str | None = None) -> ReserveConfig:
    """`size` bytes in slot (0, 0), so in every slot that the config does not name."""
    limits = read_limits(config())
    site = SiteReserve(
        site="harness.py:ask",
        grade="proved" if formula else "observed",
        bytes=size,
        cover="bound" if formula else "observed",
        formula=formula,
    )
    model = Model(name="matrix", digest=model_digest(limits), layout=layout(limits))
    return ReserveConfig(
        made_by="the matrix", model=model, limits=limits,
        slots=[SlotReserve(bytes=size)], sites=[site],
    )  # fmt: skip


@scenario
def unlocked(folder: Path) -> Facts:
    """No lock, a graph captured, then a growth while serving: WS202, WS201 and WS301."""
    with recorded(folder) as live:
        engine = Kit(live, locks=False).engine(v2=True)
        old = addresses()[0]
        engine.script["execute_model"] = lambda: other_ask(2 * MIB)
        engine.step(a=3)
        return {"moved": addresses()[0] != old}


@scenario
def in_capture(folder: Path) -> Facts:
    """A growth while a graph is being captured: WS303."""
    with recorded(folder) as live:
        Kit(live).engine(capture_model=lambda: (captured(live, lambda: ask(2 * MIB)), lock()))
        return {}


@scenario
def uneven(folder: Path) -> Facts:
    """Two ubatches, warmed with different sizes."""
    with recorded(folder) as live:

        def profile() -> None:
            for index in (0, 1):
                with ubatch(index):
                    ask((2 - index) * MIB)

        Kit(live).engine((2,), profile_run=profile, capture_model=lock)
        return {}


@scenario
def views(folder: Path) -> Facts:
    """`--check-views`: a view taken in warm-up outlives a growth, another does not."""
    kept: list[Any] = []
    with recorded(folder, check_views=True) as live:

        def warm_up() -> None:
            kept.append(ask(1024))
            other_ask(2 * MIB)

        Kit(live).engine(warmup_kernels=warm_up)
        return {"kept": len(kept)}


@scenario
def own_capture_v1(folder: Path) -> Facts:
    """vLLM's own V1 capture_model: does it lock?"""
    return own_capture(folder, v2=False)


@scenario
def own_capture_v2(folder: Path) -> Facts:
    """vLLM's own V2 capture_model: does it lock?"""
    return own_capture(folder, v2=True)


def own_capture(folder: Path, v2: bool) -> Facts:
    """Run the real method; its parts (graph manager, streams) are inert."""
    with recorded(folder):
        engine = Engine({"profile_run": lambda: ask(MIB)}, v2=v2).start()
        return {"locked": workspace().current_workspace_manager().is_locked()} | {
            "runner": type(engine.wrapper.worker.model_runner).__module__
        }


@scenario
def warm_up_requests(folder: Path) -> Facts:
    """V2's made-up requests, in this version's own SchedulerOutput, are no real steps."""
    with recorded(folder) as live:
        kinds: list[str] = []
        note = lambda: kinds.append(live.steps.kind)  # noqa: E731
        engine = Kit(live).engine(v2=True, execute_model=note)
        for ids in ({"_warmup_0_": 2, "_warmup_1_": 2}, {"_v2_mixed_warmup_prefill_": 9}):
            engine.step(**ids)
        engine.script["warmup_kernels"] = lambda: engine.step(made_up=2)
        engine.wrapper.worker.compile_or_warm_up_model()
        engine.step(real=7)
        engine.step()
        return {"kinds": kinds, "real": live.steps.real, "max_tokens": live.steps.max_tokens}


@scenario
def future(folder: Path) -> Facts:
    """A manager that wstrace does not know: the same answers, with the recorder or without."""

    def serve() -> list[Any]:
        engine = Engine({"profile_run": lambda: ask(MIB), "capture_model": lock}).start()
        answers: list[Any] = []
        engine.script["execute_model"] = lambda: answers.extend(
            [ask(512).numel(), ask(MIB).numel(), caught(lambda: other_ask(2 * MIB))]
        )
        engine.step(a=3)
        engine.step(b=3)
        return answers

    plain = serve()
    with recorded(folder) as live:
        told = serve()
        why = {name: hook.why for name, hook in live.hooks.states.items() if not hook.set}
    return {"plain": plain, "recorded": told, "stood_down": why}
