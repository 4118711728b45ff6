"""Scenarios of whole lives: phases, steps, elastic EP, sleep, reserve, capture_model."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.matrix.harness import MIB, Engine, ask, config, module, recorded, workspace
from tests.matrix.kit import Facts, Kit, arenas, captured, lock, release_graphs, scenario
from wstrace.recorder.vllm_state.config_limits import read_limits
from wstrace.reserve.config import (
    Model,
    ReserveConfig,
    SiteReserve,
    SlotReserve,
    dumps,
    layout,
    model_digest,
)


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
            profile_cudagraph_memory=lambda: captured(lambda: ask(2 * MIB)),
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
        return {"phase": live.phases.current, "manager_gone": live.manager.current is None}


def engine_dummy() -> None:
    """The dummy run that V1 makes after the lock."""
    ask(768)


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
        release_graphs()
        workspace().reset_workspace_manager()
        workspace().init_workspace_manager(torch.device("cpu"))
        engine.script["execute_model"] = lambda: [ask(size) for size in (MIB, 2 * MIB)]
        engine.step(b=1)
        return {}


@scenario
def relock(folder: Path) -> Facts:
    """Elastic EP: graphs dropped, unlock, profile run, warm-up and capture again, lock."""
    manager = workspace().WorkspaceManager
    if not hasattr(manager, "unlock"):
        return {"supported": False}
    with recorded(folder) as live:
        engine = Kit(live).engine(execute_model=lambda: ask(1024))
        engine.step(a=1)
        release_graphs()
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
def own_capture_v1(folder: Path) -> Facts:
    """vLLM's own V1 capture_model: does it lock?"""
    return own_capture(folder, v2=False)


@scenario
def own_capture_v2(folder: Path) -> Facts:
    """vLLM's own V2 capture_model: does it lock?"""
    return own_capture(folder, v2=True)


def own_capture(folder: Path, v2: bool) -> Facts:
    """Run the real method; its parts (graph manager, streams) are inert. Serve one step."""
    script = {"profile_run": lambda: ask(MIB), "execute_model": lambda: ask(MIB)}
    with recorded(folder):
        engine = Engine(script, v2=v2).start()
        engine.step(a=5)
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
