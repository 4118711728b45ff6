"""How tokens reach the experts of a rank: which ways the MoE rules' row counts were read for.

An all2all decides how many rows its experts get, and some hand over more than the tokens of
the ranks: DeepEP v2 rounds each rank's share up to a power of two (with graphs) or makes a row
of each (token, expert) pair (eager), MoonEP's rows are such pairs, and MoRI hands over a
buffer of a whole step a rank, under sequence-parallel MoE too (0.22.1 on).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from wstrace.vllm.model_config import expert_parallel_size
from wstrace.vllm.number import DP, TP

if TYPE_CHECKING:
    Limit = int | str | bool | list[int] | None

WORDS: Final = frozenset(("all2all_backend",))
"""The settings that are words and decide a number of a formula."""
_ALL_GATHER: Final = frozenset(("allgather_reducescatter", "naive"))
_ROUTED: Final = frozenset(("deepep_high_throughput",))
_PAIRWISE: Final = frozenset(("flashinfer_all2allv", "flashinfer_nvlink_two_sided"))
_READ_BACKENDS: Final = _ALL_GATHER | _ROUTED | _PAIRWISE
"""Values of ParallelConfig.all2all_backend (0.13.0 to 0.33.0)."""
DEFAULT: Final = "allgather_reducescatter"
"""What vLLM takes where --all2all-backend is not given (0.13.0 to 0.33.0)."""
_SPLITTING: Final = _ALL_GATHER | _ROUTED
"""Those of the read ones under which TP ranks split a step's tokens before the experts (0.13.0
to 0.33.0: ParallelConfig.use_sequence_parallel_moe)."""
_OWN_EXPERTS: Final = "passthrough"
"""The backend whose experts dispatch by themselves in every layout (0.33.0)."""
_READ_CLASSES: Final = frozenset(
    (
        "MoEPrepareAndFinalizeNoEP",  # 0.13.0 to 0.16.0
        "MoEPrepareAndFinalizeNoDPEPModular",  # 0.18.1 on
        "MoEPrepareAndFinalizeNaiveEP",  # 0.16.0
        "MoEPrepareAndFinalizeNaiveDPEPModular",  # 0.18.1 on
        "FlashInferAllGatherMoEPrepareAndFinalize",  # 0.13.0 to 0.14.1
        "DeepEPHTPrepareAndFinalize",
        "FlashInferAllToAllMoEPrepareAndFinalize",  # 0.13.0 to 0.14.1
        "FlashInferA2APrepareAndFinalize",  # 0.16.0
        "FlashInferNVLinkTwoSidedPrepareAndFinalize",  # 0.18.1 on
    )
)
"""Classes of `prepare_finalize`; one that inherits from them may dispatch otherwise (0.33.0:
PassThroughPrepareAndFinalize), so that the class itself counts, not its bases."""


def is_read(limits: Mapping[str, Limit], classes: Iterable[str]) -> bool:
    """Whether the MoE rules' rows hold for this dispatch.

    `limits` are an engine's, `classes` those of its `prepare_finalize`, the class before its
    bases; empty where a trace does not say. Then the backend tells; without one too, only
    ranks that hold a part of every expert are known to dispatch as read.
    """
    backend = limits.get("all2all_backend")
    own = next(iter(classes), None)
    if expert_parallel_size(limits) == 1:
        return own in _READ_CLASSES if own else backend != _OWN_EXPERTS
    if own is not None and own not in _READ_CLASSES:
        return False
    return backend in _READ_BACKENDS if backend is not None else own is not None


def numbers_of(settings: Mapping[str, Limit]) -> dict[str, int]:
    """What an engine's settings say of the rows of its experts, where there is no trace.

    Nothing where they name no all2all: then nothing decides. One that was not read counts
    unless expert parallelism is said to be off, since without it vLLM asks no all2all.
    """
    backend = settings.get("all2all_backend")
    if not isinstance(backend, str):
        return {}
    ranks = expert_parallel_size(settings)
    told = not settings.keys().isdisjoint(("expert_parallel_size", "enable_expert_parallel"))
    read = is_read(settings, ()) if told else backend in _READ_BACKENDS
    found = {"unread_dispatch": int(not read)} | (
        {"expert_parallel_size": ranks} if told else {}
    )
    tp, dp = (settings.get(name) or 1 for name in (TP, DP))
    if backend in _SPLITTING and ranks > 1 and dp != 1 and isinstance(tp, int) and tp > 1:
        found["sequence_parallel_size"] = tp
    return found
