"""`python -m tests.matrix.differential.live_v4 SOURCES`: DeepSeek-V4's sites, sliced live.

The wheel's own modules are imported, and the real layers call the real functions; every other
module of vLLM is a stand-in without numbers. Prints, as JSON, what each request's slice is.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import json
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.library import Library, infer_schema

from tests.matrix.differential.released import Base, Unknown, request_bytes
from wstrace.slicer.slicer import slice_request

REAL = (
    "vllm.v1.attention.backend",
    "vllm.models.deepseek_v4.attention",
    "vllm.models.deepseek_v4.nvidia.flashmla",
    "vllm.model_executor.layers.sparse_attn_indexer",
)
NUMBERS = {
    "max_model_len": 16384,
    "max_num_batched_tokens": 2048,
    "window_size": 128,
    "compress_ratio": 4,
}


class Absent(Unknown):
    """As `Unknown`; as a decorator it leaves what it decorates as it is."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_name":
            raise AttributeError(name)
        return Absent(f"{self._name}.{name}")

    def __call__(self, *given: Any, **_: Any) -> Any:
        if len(given) == 1 and isinstance(given[0], type | FunctionType):
            return given[0]
        return Absent(f"{self._name}()")

    def __getitem__(self, _: Any) -> Any:
        return Absent(f"{self._name}[]")

    def __mro_entries__(self, _: Any) -> tuple[type, ...]:
        if self._name.endswith((".CustomOp", ".PluggableLayer")):
            return (torch.nn.Module,)
        return () if self._name.endswith("AttentionLayerBase") else (Base,)


class Platform:
    """vLLM's platform, as CUDA answers."""

    def fp8_dtype(self) -> torch.dtype:
        """Platform.fp8_dtype of 0.22.1."""
        return torch.float8_e4m3fn


OPS = Library("vllm", "FRAGMENT")


def register(op_name: str, op_func: FunctionType, mutates_args: Any = (), **_: Any) -> None:
    """Makes the custom op of the indexer, as vLLM's direct_register_custom_op does."""
    if op_name == "sparse_attn_indexer":
        OPS.define(op_name + infer_schema(op_func, mutates_args=mutates_args))
        OPS.impl(op_name, op_func, "CompositeExplicitAutograd")


HELD = {
    "direct_register_custom_op": register,
    "LayerNameType": str,
    "_encode_layer_name": str,
    "_resolve_layer_name": str,
    "eager_break_during_capture": lambda function: function,
}


class StandIn(ModuleType):
    """A module of vLLM that is not imported."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return HELD.get(name, Absent(f"{self.__name__}.{name}"))


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the real modules in the wheel's sources, a stand-in for the rest of vLLM."""

    def __init__(self, sources: Path) -> None:
        self.sources = sources

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module under `vllm`."""
        if fullname.split(".")[0] != "vllm":
            return None
        file = self.sources.joinpath(*fullname.split(".")).with_suffix(".py")
        if fullname in REAL:
            return importlib.util.spec_from_file_location(fullname, file)
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """A stand-in."""
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


class Done(Exception):  # noqa: N818  how a run ends
    """The wanted request was made."""


class Manager:
    """Slices a request as the recorder does, and ends the run."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []

    def get_simultaneous(self, *specs: Any) -> None:
        """Keep the slice of the caller's request."""
        frame = sys._getframe(1)
        found = slice_request(frame, specs)
        self.told.append(
            {
                "function": frame.f_code.co_qualname,
                "bytes": request_bytes(specs),
                "formula": found.formula,
                "stopped": found.stopped,
                "leaves": [[x.name, x.kind, x.role, x.value, x.why] for x in found.leaves],
            }
        )
        raise Done


def main(sources: Path) -> int:
    """Play the sites of one release."""
    sys.meta_path.insert(0, Finder(sources))
    _, attention, flash, indexer = (importlib.import_module(name) for name in REAL)
    manager = Manager()
    for module in (flash, indexer):
        vars(module)["current_workspace_manager"] = lambda: manager
    swa = SimpleNamespace(
        num_decodes=0, num_prefills=1, num_decode_tokens=0, num_prefill_tokens=8,
        prefill_seq_lens=torch.ones(1), prefill_gather_lens=torch.ones(1),
        query_start_loc_cpu=torch.zeros(2), query_start_loc=torch.zeros(2),
    )  # fmt: skip
    rows = SimpleNamespace(
        slot_mapping=_meta(8), num_decodes=0, num_prefills=1, num_decode_tokens=0,
        prefill=SimpleNamespace(chunks=[]), decode=None,
    )  # fmt: skip
    compressed = SimpleNamespace(c128a_prefill_topk_indices=torch.zeros(8, 512))
    wrapper = _wrapper(attention, flash.DeepseekV4FlashMLASparseImpl)
    layer = _indexer(indexer)
    dummy_run, compressed_layer, window_layer = (
        None,
        {"layer": compressed, "swa": swa, "k": rows},
        {"layer": None, "swa": swa, "k": rows},
    )
    for metadata in (dummy_run, compressed_layer, window_layer):
        context = SimpleNamespace(attn_metadata=metadata)
        for module in (attention, flash, indexer):
            vars(module)["get_forward_context"] = lambda context=context: context
        for tokens in (8, 24):
            hidden, out = _meta(tokens, 4096), _meta(tokens, 16, 512)
            _until_asked(lambda h=hidden, o=out: wrapper.attention_impl(h, torch.zeros(8), o))
            _until_asked(lambda h=hidden: layer.forward_cuda(h, _meta(8, 64, 128), h, h))
    print(json.dumps(manager.told))
    return 0


def _meta(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="meta")


def _module(cls: type, **attributes: Any) -> Any:
    made: Any = object.__new__(cls)
    torch.nn.Module.__init__(made)
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def _wrapper(attention: ModuleType, impl: type) -> Any:
    """The layer around the attention; its GEMMs and its fused kernel are any functions."""
    layer = _module(
        attention.DeepseekV4MLAAttention,
        **NUMBERS,
        impl_cls=impl,
        prefix="layer",
        kv_cache=torch.zeros(1),
        topk_indices_buffer=torch.zeros(8, 512),
        swa_cache_layer=SimpleNamespace(prefix="swa", kv_cache=torch.zeros(1)),
    )
    vars(attention)["fused_q_kv_rmsnorm"] = lambda qr, kv, *_: (qr, kv)
    weight = SimpleNamespace(weight=torch.zeros(1))
    return _module(
        attention.DeepseekV4MultiHeadLatentAttentionWrapper,
        attn_gemm_parallel_execute=lambda h: (_meta(len(h), 1536), None, None, None),
        q_lora_rank=1024, head_dim=512, n_local_heads=16, eps=1e-6,
        q_norm=weight, kv_norm=weight, indexer=None, compressor=None, mla_attn=layer,
        wq_b=lambda qr: _meta(len(qr), 16 * 512),
        _fused_qnorm_rope_kv_insert=lambda q, *_: torch.relu(q),
    )  # fmt: skip


def _indexer(module: ModuleType) -> Any:
    vars(module)["current_platform"] = Platform()
    vars(module)["DeepseekV32IndexerMetadata"] = SimpleNamespace
    return _module(
        module.SparseAttnIndexer,
        k_cache=SimpleNamespace(prefix="k", kv_cache=_meta(1)),
        quant_block_size=128, scale_fmt="ue8m0", topk_tokens=512, head_dim=128,
        max_model_len=16384, max_total_seq_len=163840, topk_indices_buffer=_meta(8, 512),
        skip_k_cache_insert=True, use_fp4_cache=False,
    )  # fmt: skip


def _until_asked(call: Any) -> None:
    try:
        call()
    except Done:
        return
    raise AssertionError("no request was made")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
