"""A worker and a model runner that call the real workspace functions, in vLLM's own order.

The classes derive from vLLM's `Worker` and `GPUModelRunner`; the methods that need a GPU are
replaced by scripts, one callable a name, with the names and signatures that vLLM has in this
version. The door (`WorkerWrapperBase.init_device`) and all that touches the manager are vLLM's.

`FUTURE` is what an edited copy of vLLM changed: `renamed` ("Worker.execute_model": new name)
and `modules` (old module: new one), so that the engine is driven as that vLLM would do it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch

from tests.matrix.stand_ins import inert
from wstrace.recorder import install
from wstrace.recorder.settings import Settings
from wstrace.recorder.state.process import Live

Script = Mapping[str, Callable[[], Any]]
MIB = 1 << 20
FUTURE: dict[str, dict[str, str]] = {"renamed": {}, "modules": {}}


def module(name: str) -> ModuleType:
    """A module of the loaded vLLM, by its name below `vllm.`."""
    return importlib.import_module(f"vllm.{FUTURE['modules'].get(name, name)}")


def name_now(owner: type, name: str) -> str:
    """What this vLLM calls the method."""
    return FUTURE["renamed"].get(f"{owner.__name__}.{name}", name)


def call(owner: Any, name: str, *args: Any) -> Any:
    """Call a method by the name that it has in this vLLM."""
    return getattr(owner, name_now(type(owner), name))(*args)


def workspace() -> ModuleType:
    """vLLM's real workspace module."""
    return module("v1.worker.workspace")


def ask(size: int) -> torch.Tensor:
    """One request of `size` bytes, a multiple of 256, at a site of its own."""
    (view,) = workspace().current_workspace_manager().get_simultaneous(((size,), torch.uint8))
    return view


def other_ask(size: int) -> torch.Tensor:
    """As `ask`, at another site."""
    (view,) = workspace().current_workspace_manager().get_simultaneous(((size,), torch.uint8))
    return view


@contextmanager
def ubatch(index: int) -> Iterator[None]:
    """Stand on the thread of this ubatch, as vLLM's UBatchContext does."""
    contexts = module("v1.worker.ubatching")._THREAD_ID_TO_CONTEXT
    contexts[threading.get_ident()] = index
    try:
        yield
    finally:
        del contexts[threading.get_ident()]


def config(**limits: Any) -> Any:
    """A vllm_config with what the recorder reads; `limits` go to the model config."""
    model = SimpleNamespace(
        max_model_len=4096,
        dtype=torch.bfloat16,
        enforce_eager=False,
        model="/models/matrix",
        get_num_attention_heads=lambda parallel: 8,
        get_num_kv_heads=lambda parallel: 4,
        get_head_size=lambda: 64,
        **limits,
    )
    return SimpleNamespace(
        model_config=model,
        cache_config=SimpleNamespace(block_size=16, cache_dtype="auto"),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=256, max_num_seqs=8),
        parallel_config=SimpleNamespace(
            data_parallel_size=1,
            data_parallel_rank=0,
            tensor_parallel_size=1,
            pipeline_parallel_size=1,
        ),
        compilation_config=SimpleNamespace(cudagraph_mode="FULL_AND_PIECEWISE"),
    )


class Engine:
    """A WorkerWrapperBase with a scripted worker: start it, step it, shut it down.

    `v2` picks the V2 runner's class. `slots` are the arguments of init_workspace_manager
    after the device.
    """

    def __init__(
        self, script: Script, *, v2: bool = False, slots: tuple[int, ...] = ()
    ) -> None:
        self.script, self.slots = dict(script), slots
        named = FUTURE["renamed"].get("WorkerWrapperBase", "WorkerWrapperBase")
        base = getattr(module("v1.worker.worker_base"), named)
        self.wrapper = base.__new__(base)
        self.wrapper.vllm_config = config()
        self.wrapper.mm_receiver_cache = None
        self.wrapper._worker_extension_cls = None
        self.wrapper.worker = _worker_class(self, _runner_class(self, v2))()

    def run(self, name: str) -> Any:
        """The script of this name, if there is one."""
        return self.script.get(name, lambda: None)()

    def start(self) -> Engine:
        """From init_device to the end of warm-up, as the executor calls it."""
        call(self.wrapper, "init_device")
        worker = self.wrapper.worker
        blocks = SimpleNamespace(num_blocks=64, kv_cache_tensors=[SimpleNamespace(size=MIB)])
        call(worker, "load_model")
        call(worker, "determine_available_memory")
        call(worker, "initialize_from_config", blocks)
        call(worker, "compile_or_warm_up_model")
        return self

    def step(self, **requests: int) -> Any:
        """One execute_model step; requests are id -> scheduled tokens, all new."""
        return call(self.wrapper, "execute_model", scheduler_output(requests))


def scheduler_output(requests: Mapping[str, int], computed: int = 0) -> Any:
    """This version's own SchedulerOutput with these new requests."""
    output = module("v1.core.sched.output")
    made: Any = output.SchedulerOutput.make_empty()
    made.num_scheduled_tokens = dict(requests)
    made.total_num_scheduled_tokens = sum(requests.values())
    made.scheduled_new_reqs = [
        output.NewRequestData(
            req_id=name,
            prompt_token_ids=list(range(tokens)),
            mm_features=[],
            sampling_params=None,
            pooling_params=None,
            block_ids=([],),
            num_computed_tokens=computed,
            lora_request=None,
        )
        for name, tokens in requests.items()
    ]
    return made


class ScriptedRunner:
    """What stands before vLLM's model runner: the methods that need a GPU."""

    engine: Engine
    vllms: Any

    def __init__(self) -> None:
        self.model_memory_usage = 0
        self.use_pp, self._draft_workspace_lane = False, 0

    def profile_run(self, *args: Any) -> None:
        self.engine.run("profile_run")

    def profile_cudagraph_memory(self) -> int:
        self.engine.run("profile_cudagraph_memory")
        return 0

    def initialize_kv_cache(self, kv_cache_config: Any) -> None:
        self.engine.run("initialize_kv_cache")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return inert(name)

    def capture_model(self, *args: Any, **kwargs: Any) -> Any:
        """The script, or vLLM's own method with inert parts where there is none."""
        if "capture_model" in self.engine.script:
            return self.engine.run("capture_model")
        return self.vllms.capture_model(self, *args, **kwargs)

    def _dummy_run(self, num_tokens: int, **kwargs: Any) -> None:
        self.engine.run("_dummy_run")

    def execute_model(self, *args: Any, **kwargs: Any) -> None:
        self.engine.run("execute_model")

    def sample_tokens(self, grammar_output: Any) -> None:
        self.engine.run("sample_tokens")


class ScriptedWorker:
    """What stands before vLLM's worker: its own order of calls, without the device."""

    engine: Engine
    runner: Callable[[], Any]

    def __init__(self) -> None:
        self.vllm_config = self.engine.wrapper.vllm_config
        self.device, self.rank = torch.device("cpu"), 0

    def init_device(self) -> None:
        workspace().init_workspace_manager(self.device, *self.engine.slots)
        self.engine.run("init_device")
        self.model_runner = self.runner()

    def load_model(self) -> None:
        self.engine.run("load_model")

    def determine_available_memory(self) -> int:
        call(self.model_runner, "profile_run")
        call(self.model_runner, "profile_cudagraph_memory")
        return 64 * MIB

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        call(self.model_runner, "initialize_kv_cache", kv_cache_config)

    def compile_or_warm_up_model(self) -> float:
        self.engine.run("warmup_kernels")
        call(self.model_runner, "capture_model")
        self.engine.run("post_lock")
        return 0.0

    def execute_model(self, *args: Any) -> Any:
        return self.model_runner.execute_model(*args)

    def sample_tokens(self, grammar_output: Any) -> Any:
        return self.model_runner.sample_tokens(grammar_output)

    def execute_dummy_batch(self) -> None:
        getattr(self.model_runner, name_now(type(self.model_runner), "_dummy_run"))(
            1, uniform_decode=True
        )

    def sleep(self, level: int = 1) -> None:
        self.engine.run("sleep")

    def wake_up(self, tags: Any = None) -> None:
        self.engine.run("wake_up")

    def shutdown(self) -> None:
        self.engine.run("shutdown")


def _runner_class(engine: Engine, v2: bool) -> type:
    name = "v1.worker.gpu.model_runner" if v2 else "v1.worker.gpu_model_runner"
    vllms = module(name).GPUModelRunner
    return _scripted(ScriptedRunner, vllms, engine=engine, vllms=vllms)


def _worker_class(engine: Engine, runner: type) -> type:
    vllms = module("v1.worker.gpu_worker").Worker
    return _scripted(ScriptedWorker, vllms, engine=engine, runner=staticmethod(runner))


def _scripted(script: type, real: type, **more: Any) -> type:
    """A subclass of vLLM's class, under its name, with the methods of `script`."""
    body: dict[str, Any] = {"__module__": real.__module__}
    for name, member in vars(script).items():
        if name in ("__init__", "__getattr__"):
            body[name] = member
        elif isinstance(member, FunctionType):
            now = name_now(real, name)
            body[now] = _like(inspect.getattr_static(real, now, None), member)
    return type(real.__name__, (real,), body | more)


def _like(vllms: Any, script: FunctionType) -> Any:
    """The script with the signature of vLLM's method; as it is where vLLM has none."""
    if vllms is None:
        return script

    @functools.wraps(script)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return script(self, *args, **kwargs)

    method.__signature__ = inspect.signature(vllms)  # type: ignore[attr-defined]
    return method


@contextmanager
def recorded(folder: Path, **settings: Any) -> Iterator[Live]:
    """A recorder for the engines started inside; its files go to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    live = install.install(Settings(str(folder), "matrix", **settings))
    try:
        yield live
    finally:
        install.uninstall()
        workspace().reset_workspace_manager()
