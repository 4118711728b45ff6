"""A release's own reservation and request on its own workspace manager, locked, without a GPU.

    python -m tests.matrix.suggested FOLDER CHUNKED CACHED: prints what each continuation of
    TurboQuant asked for and whether the locked manager refused it, as JSON.

FOLDER holds a `vllm/`. The builder's constructor and `_continuation_prefill` are taken from its
turboquant_attn.py and run as they stand, up to the request.
"""

from __future__ import annotations

import ast
import json
import math
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from tests.matrix.stand_ins import load_vllm

FILE = "vllm/v1/attention/backends/turboquant_attn.py"
CACHED = (992, 8992, 16383)
HEADS, KV_HEADS, HEAD, BLOCK = 16, 4, 128, 16


class Asked(Exception):  # noqa: N818 - the end of the function under test
    """The request was granted: all after it needs a GPU."""


class Base:
    """The part of AttentionMetadataBuilder that the constructor needs."""

    reorder_batch_threshold = 1

    def __init__(self, kv_cache_spec: Any, names: Any, vllm_config: Any, device: Any) -> None:
        self.kv_cache_spec, self.vllm_config = kv_cache_spec, vllm_config

    def _init_reorder_batch_threshold(self, *_: Any, **__: Any) -> None:
        """Nothing that the workspace depends on."""


def taken(folder: Path, cls: str, base: type, names: dict[str, Any]) -> type:
    """A class with the constructor and the workspace methods of the release's own."""
    wanted = ("__init__", "_reserve_workspace", "_continuation_prefill")
    tree = ast.parse((folder / FILE).read_text())
    found = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == cls)
    kept = [n for n in found.body if isinstance(n, ast.FunctionDef) and n.name in wanted]
    if cls.endswith("Impl"):
        kept = [n for n in kept if n.name == "_continuation_prefill"]
    body: list[ast.stmt] = [*kept]
    made = ast.ClassDef(cls, [ast.Name("Base", ast.Load())], [], body, [])
    assigned = [n for n in tree.body if isinstance(n, ast.Assign)]
    constants = [n for n in assigned if isinstance(n.value, ast.Constant)]
    future = ast.parse("from __future__ import annotations").body
    module = ast.fix_missing_locations(ast.Module([*future, *constants, made], []))
    names = names | {"Base": base}
    exec(compile(module, FILE, "exec"), names)
    held = names[cls]
    assert isinstance(held, type)
    return held


def main(folder: Path, chunked: bool, cached: bool) -> None:
    load_vllm(folder)
    workspace = import_module("vllm.v1.worker.workspace")

    manager = workspace.WorkspaceManager
    granted = manager.get_simultaneous

    def names(get: Any) -> dict[str, Any]:
        return {
            "torch": torch,
            "math": math,
            "init_logger": lambda name: None,
            "triton": SimpleNamespace(next_power_of_2=lambda n: 1 << (n - 1).bit_length()),
            "round_up": lambda x, y: -(-x // y) * y,
            "current_workspace_manager": get,
            "is_workspace_manager_initialized": lambda: True,
        }

    workspace.init_workspace_manager(torch.device("cpu"))
    builder = taken(folder, "TurboQuantMetadataBuilder", Base,
                    names(workspace.current_workspace_manager))  # fmt: skip
    builder(spec(), ["layer"], config(chunked, cached), None)
    workspace.lock_workspace()
    arena = workspace.current_workspace_manager()._current_workspaces[0]

    def once(self: Any, *specs: Any) -> Any:
        granted(self, *specs)
        raise Asked

    manager.get_simultaneous = once
    impl = taken(folder, "TurboQuantAttentionImpl", object,
                 names(workspace.current_workspace_manager))  # fmt: skip
    states = {length: refused(impl, length) for length in CACHED}
    size = 0 if arena is None else arena.numel() * arena.element_size()
    print(json.dumps({"arena": size, "refused": states}))


def refused(impl: Any, cached: int) -> str:
    """The manager's message where it refused, else ''."""
    layer = object.__new__(impl)
    layer._mse_bytes = layer._val_data_bytes = 0
    query = torch.empty((256, HEADS, HEAD), device="meta")
    key = torch.empty((256, KV_HEADS, HEAD), device="meta")
    cache = torch.empty((4096, BLOCK, KV_HEADS, 72), device="meta")
    given = [None, query, key, key, cache, None, cached, cached + 256, None, None]
    try:
        layer._continuation_prefill(*given)
    except Asked:
        return ""
    except AssertionError as error:
        return str(error)
    raise RuntimeError("no request was made")


def spec() -> Any:
    return SimpleNamespace(num_kv_heads=KV_HEADS, head_size=HEAD, block_size=BLOCK)


def config(chunked: bool, cached: bool) -> Any:
    """A VllmConfig of 16384 tokens."""
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(
            max_num_seqs=8, max_num_batched_tokens=16384, enable_chunked_prefill=chunked
        ),
        cache_config=SimpleNamespace(enable_prefix_caching=cached),
        model_config=SimpleNamespace(
            max_model_len=16384,
            dtype=torch.bfloat16,
            get_num_attention_heads=lambda parallel: HEADS,
        ),
        parallel_config=SimpleNamespace(),
        attention_config=SimpleNamespace(tq_max_kv_splits_for_cuda_graph=32),
        compilation_config=SimpleNamespace(max_cudagraph_capture_size=8),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] == "1", sys.argv[3] == "1")
