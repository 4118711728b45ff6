"""Servers' log lines, the deadline, packing, and hooks that come off and go back."""

from __future__ import annotations

import ast
import json
import sys
import tarfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tools.bench.toggle import detached
from tools.gpu.clock import Clock, OutOfTimeError
from tools.gpu.models import MODELS, make
from tools.gpu.packing import LINE, LOG_BYTES, pack, pack_caches, trim, unpack_caches
from tools.gpu.servers import ANNOUNCED, SIZED, last_error
from wstrace.recorder.wrapping import Hooks, original_of
from wstrace.vllm.methods import Known

LOG_021 = (
    "(EngineCore pid=2452) INFO 11-27 21:27:41 [core.py:109] Initializing a V1 LLM engine "
    "(v0.21.0) with config: model='q3'\n"
    "(EngineCore pid=2452) INFO 11-27 21:28:07 [kv_cache_utils.py:1710] GPU KV cache size: "
    "4,007,568 tokens\n"
)


def test_lines_of_a_real_log_are_recognised() -> None:
    first, second = LOG_021.splitlines()
    assert ANNOUNCED.search(first)
    assert not SIZED.search(first)
    assert SIZED.search(second)


def test_last_error_prefers_the_cause() -> None:
    log = (
        "(EngineCore pid=1) ERROR ValueError: No valid attention backend\n"
        "(APIServer pid=2) RuntimeError: Engine core initialization failed. See root cause\n"
        "(APIServer pid=2) INFO bye\n"
    )
    assert last_error(log) == "ERROR ValueError: No valid attention backend"


def test_the_clock_shortens_a_wait_and_then_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(deadline=100.0, margin=40.0, started=0.0)
    monkeypatch.setattr("time.monotonic", lambda: 50.0)
    assert clock.within(300.0, "prompt") == 10.0
    assert clock.within(5.0, "prompt") == 5.0
    monkeypatch.setattr("time.monotonic", lambda: 61.0)
    with pytest.raises(OutOfTimeError, match="prompt"):
        clock.within(5.0, "prompt")


def test_a_long_log_keeps_both_ends(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("first\n" + "x" * (2 * LINE) + "\n" + "line\n" * LOG_BYTES + "last\n")
    trim(log)
    text = log.read_text()
    assert len(text) < LOG_BYTES + 100
    assert text.startswith("first\n" + "x" * LINE + " [cut]\n")
    assert text.endswith("last\n")


def test_pack_holds_the_folder(tmp_path: Path) -> None:
    (tmp_path / "a" / "grow").mkdir(parents=True)
    (tmp_path / "a" / "grow" / "gate.json").write_text("{}")
    target = pack(tmp_path / "a", tmp_path / "a.tar.gz")
    with tarfile.open(target) as archive:
        assert "a/grow/gate.json" in archive.getnames()


def test_caches_travel(tmp_path: Path) -> None:
    (tmp_path / "old" / "triton" / "k").mkdir(parents=True)
    (tmp_path / "old" / "triton" / "k" / "kernel.cubin").write_bytes(b"\x7fELF")
    group = {"kernel.cubin": "/elsewhere/triton/k/kernel.cubin"}
    grouped = tmp_path / "old" / "triton" / "k" / "__grp__kernel.json"
    grouped.write_text(json.dumps({"child_paths": group}))
    (tmp_path / "old" / "models").mkdir()
    pack_caches(tmp_path / "old", tmp_path / "caches.tar.xz")
    unpack_caches(tmp_path / "caches.tar.xz", tmp_path / "new")
    assert (tmp_path / "new" / "triton" / "k" / "kernel.cubin").read_bytes() == b"\x7fELF"
    assert not (tmp_path / "new" / "models").exists()
    found = json.loads((tmp_path / "new" / "triton" / "k" / "__grp__kernel.json").read_text())
    assert Path(found["child_paths"]["kernel.cubin"]).read_bytes() == b"\x7fELF"


@pytest.mark.parametrize("name", sorted(MODELS))
def test_models_have_what_vllm_divides_by(tmp_path: Path, name: str) -> None:
    config = json.loads((make(tmp_path, name) / "config.json").read_text())
    assert config["num_attention_heads"] % config["num_key_value_heads"] == 0
    assert config["vocab_size"] > 256


class Engine:
    """Something to hook."""

    def step(self) -> str:
        return "vLLM's"


def hooked(owner: type) -> Hooks:
    """One hook on `owner.step`."""

    def maker(original: Any) -> Any:
        def step(self: Any) -> str:
            return f"seen, then {original(self)}"

        return step

    hooks = Hooks(report=lambda record: None)
    assert hooks.wrap(owner, Known("Engine", "step", "test"), maker)
    return hooks


class Live:
    """As much of the recorder's state as `detached` needs."""

    def __init__(self, hooks: Hooks) -> None:
        self.hooks = hooks


@pytest.mark.parametrize("inherited", [False, True])
def test_detached_runs_the_original_and_comes_back(inherited: bool) -> None:
    class Own(Engine):
        pass

    if not inherited:
        Own.step = Engine.step  # type: ignore[method-assign]
    live = Live(hooked(Own))
    with detached(live):  # type: ignore[arg-type]
        assert Own().step() == "vLLM's"
        assert original_of(Own.step) is None
    assert Own().step() == "seen, then vLLM's"
    live.hooks.remove()
    assert Own().step() == "vLLM's"
    assert ("step" in vars(Own)) is not inherited


def test_detached_comes_back_after_an_error() -> None:
    class Own(Engine):
        pass

    live = Live(hooked(Own))
    with pytest.raises(ValueError), detached(live):  # type: ignore[arg-type]
        raise ValueError
    assert Own().step() == "seen, then vLLM's"


def test_a_later_wrapper_of_somebody_else_stays() -> None:
    class Own(Engine):
        pass

    live = Live(hooked(Own))
    ours = Own.step
    Own.step = lambda self: f"other, {ours(self)}"  # type: ignore[method-assign]
    with detached(live):  # type: ignore[arg-type]
        assert Own().step() == "other, seen, then vLLM's"
    assert Own().step() == "other, seen, then vLLM's"


def test_a_warning_about_errors_is_not_the_last_error() -> None:
    log = (
        "(EngineCore pid=7) ERROR 11-28 17:30:18 [core.py:1330] AssertionError\n"
        "WARNING 11-28 17:30:19 [utils.py:299] can cause errors like `OSError: [Errno 24]`\n"
        "(APIServer pid=1) RuntimeError: Engine core initialization failed.\n"
    )
    assert last_error(log) == "ERROR 11-28 17:30:18 [core.py:1330] AssertionError"


LOADER = "vllm.model_executor.model_loader.dummy_loader"


def test_dummy_weights_are_finished_where_the_model_has_a_last_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The import wraps vLLM's loader; here a stand-in of its name, which vLLM takes long to
    load. That the engine has it, with these arguments, its source says."""
    told: list[object] = []

    class DummyModelLoader:
        def load_weights(self, model: Any, model_config: Any) -> None:
            told.append(model_config)

    class Inner:
        def finalize_mhc_broadcast_weights(self) -> None:
            told.append("finished")

    module = ModuleType(LOADER)
    vars(module)["DummyModelLoader"] = DummyModelLoader
    monkeypatch.setitem(sys.modules, LOADER, module)
    monkeypatch.delitem(sys.modules, "tools.gpu.extension", raising=False)
    import_module("tools.gpu.extension")
    monkeypatch.delitem(sys.modules, "tools.gpu.extension")
    DummyModelLoader().load_weights(SimpleNamespace(model=Inner()), "config")
    DummyModelLoader().load_weights(object(), 1)
    assert told == ["config", "finished", 1]


def test_the_engine_has_the_loader_that_is_wrapped() -> None:
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("needs the pinned engine")
    file = Path(spec.origin).parents[1] / f"{LOADER.replace('.', '/')}.py"
    (loader,) = (n for n in ast.parse(file.read_text()).body if isinstance(n, ast.ClassDef))
    assert loader.name == "DummyModelLoader"
    methods = {n.name: n for n in loader.body if isinstance(n, ast.FunctionDef)}
    names = [argument.arg for argument in methods["load_weights"].args.args]
    assert names == ["self", "model", "model_config"]
