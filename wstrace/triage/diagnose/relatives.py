"""What a text shows that is not the arena: each with its own size and its own knob."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from wstrace.bounds.by_rule import rule_bound
from wstrace.known_sites import known
from wstrace.trace.records import Ranks
from wstrace.triage.diagnose import life, symptoms
from wstrace.triage.diagnose.numbers import values
from wstrace.triage.extract import tracebacks
from wstrace.triage.extract.facts import Fault, Frame
from wstrace.triage.redaction import redact
from wstrace.units import exact
from wstrace.vllm.limits import NUMBERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from wstrace.findings.finding import Finding
    from wstrace.triage.diagnose.numbers import Given
    from wstrace.triage.extract.engine_settings import Settings
    from wstrace.triage.extract.facts import (
        Relative,
        RelativeKind,
        Resize,
        Text,
    )

TITLES: Final[dict[RelativeKind, str]] = {
    "flashinfer_buffer": "FlashInfer's own workspace buffer is too small",
    "kernel_scratch": "memory ran out in a kernel's own scratch",
    "no_manager": "a layer asked where no WorkspaceManager was made",
    "fitted_context": "a reservation was made for a longer context than the one that serves",
    "kv_cache": "the memory that is left is too small for the KV cache",
    "graph_memory": "memory ran out while graphs were captured",
    "shared_memory": "a kernel's blocks do not fit the on-chip memory of this GPU",
    "communicator": "NCCL's own buffers found no memory",
    "all2all_buffer": "the expert exchange's own buffer is too small",
}
# What the kinds without a rule of their own say, by kind and by which message it is.
_KV: Final = (
    "What is left of --gpu-memory-utilization after the weights and the peak of profiling is "
    "the KV cache: it is decided there and then, and no arena was refused."
)
_TOLD: Final[dict[tuple[RelativeKind, str], tuple[str, str]]] = {
    ("kv_cache", "maxseqlen"): (
        f"{_KV} One request of the longest context does not fit.",
        "--max-model-len N   (a smaller N than now), or a larger --gpu-memory-utilization",
    ),
    ("kv_cache", "Noavailablememory"): (
        _KV,
        "a larger --gpu-memory-utilization, or --max-num-batched-tokens N   (a smaller N)",
    ),
    ("kv_cache", "onstartup"): (
        "Other processes hold the memory that --gpu-memory-utilization asks for: nothing of "
        "the model was loaded yet.",
        "end what else is on the GPU, or a smaller --gpu-memory-utilization",
    ),
    ("graph_memory", "sampler"): (
        "The sampler is warmed up with --max-num-seqs requests after KV sizing: not the arena.",
        "--max-num-seqs N   (a smaller N than now), or a smaller --gpu-memory-utilization",
    ),
    ("shared_memory", "sharedmemory"): (
        "Triton counts the on-chip memory of one multiprocessor, a few hundred KiB: not the "
        "device's memory, and not the arena.",
        "smaller block sizes or num_stages of that kernel, or another --attention-backend",
    ),
    ("communicator", "calloc"): (
        "NCCL allocates beside PyTorch, from what --gpu-memory-utilization leaves free.",
        "a smaller --gpu-memory-utilization, or NCCL_BUFFSIZE=BYTES",
    ),
    ("communicator", "Cudafailure"): (
        "NCCL allocates beside PyTorch, from what --gpu-memory-utilization leaves free.",
        "a smaller --gpu-memory-utilization, or NCCL_BUFFSIZE=BYTES",
    ),
    ("communicator", "/dev/shm"): (
        "NCCL shares memory between the processes of a host in /dev/shm, which is full.",
        "docker run --shm-size=16g, or --ipc=host",
    ),
}
_ALL2ALL: Final = {
    "nvshmem": "NVSHMEM_SYMMETRIC_SIZE=BYTES",
    "mori": "MORI_SHMEM_HEAP_SIZE=BYTES",
}
_DEEPEP: Final = "VLLM_DEEPEP_BUFFER_SIZE_MB=N"
# vLLM 0.13.0 to 0.33.0: code that calls kernels and asks no manager.
# matches: '/x/vllm/third_party/flashmla/flash_mla_interface.py'
_KERNELS: Final = re.compile(
    r"/vllm/(?:third_party/|vllm_flash_attn/|_\w*ops\.py|utils/(?:deep_gemm|flashinfer)\.py)"
    r"|/vllm/.*/(?:ops|fla)/"
)
# matches: '/x/torch/nn/functional.py'
_MODULES: Final = re.compile(
    r"/torch/(?:nn|functional|utils|_tensor|_inductor|_dynamo|_compile)"
)
# vLLM 0.13.0 to 0.33.0: where attention and fused experts live, below the package.
# matches: 'vllm/v1/attention/backends/flash_attn.py'
_LAYERS: Final = re.compile(
    r"vllm/(?:v1/attention/|attention/|models/|model_executor/layers/"
    r"(?:attention/|fused_moe/|mamba/|\w*indexer\w*\.py))"
)
_BUFFER: Final = "flashinfer_workspace_bytes"
_MEBI: Final = 1 << 20
_CAPTURES: Final = ("capture", "graph-estimate")


@dataclass(frozen=True)
class NotTheArena:
    """A failure or a loss that looks like the arena's. Sizes are bytes, None where unknown.

    `asked` is what was wanted, `had` what there was; `knob` is what to set: a flag of vLLM or
    an environment variable, `set_to` its value in bytes where one is known.
    """

    kind: RelativeKind
    path: str
    at: int
    why: str
    knob: str
    asked: int | None = None
    had: int | None = None
    file: str = ""
    function: str = ""
    ranks: tuple[Ranks, ...] = ()
    set_to: int | None = None

    @property
    def title(self) -> str:
        """What it is, in a few words."""
        return TITLES[self.kind]


def relatives(
    text: Text, settings: Settings, given: Given, findings: Sequence[Finding]
) -> list[NotTheArena]:
    """Each relative once, in the order of the text."""
    found = [*_said(text, settings, given), *_scratch(text, findings)]
    found = _one_buffer(found)
    once: dict[object, NotTheArena] = {}
    for one in sorted(found, key=lambda one: one.at):
        once.setdefault((one.kind, one.asked, one.had, one.function), one)
    return list(once.values())


def _one_buffer(found: Sequence[NotTheArena]) -> list[NotTheArena]:
    """FlashInfer has one buffer, which fails in the words of several layers of software: of all
    that a text says of it the largest setting counts."""
    buffers = [one for one in found if one.kind == "flashinfer_buffer"]
    most = max(buffers, key=lambda one: (one.set_to or 0, -one.at), default=None)
    return [one for one in found if one.kind != "flashinfer_buffer" or one is most]


def _said(text: Text, settings: Settings, given: Given) -> Iterator[NotTheArena]:
    for fact in text.relatives:
        numbers = values(settings.resolve(fact.origin.line), given, settings.model())
        if fact.kind == "flashinfer_buffer":
            yield _flashinfer(text, fact, numbers)
        elif fact.kind == "no_manager":
            yield _no_manager(text, fact)
        elif fact.kind == "fitted_context":
            yield from _fitted(text, fact, numbers)
        else:
            yield _told(text, fact)


def _told(text: Text, fact: Relative) -> NotTheArena:
    told = _TOLD.get((fact.kind, fact.name))
    if told is None:
        name = fact.name.lower().replace("_", "")
        told = (
            "The exchange of tokens between expert ranks has buffers of its own, made at the "
            "start: no lock, and no reserve helps.",
            _ALL2ALL.get(name, _DEEPEP),
        )
    return _of(text, fact, *told, fact.first, fact.second)


def _flashinfer(text: Text, fact: Relative, numbers: Mapping[str, int]) -> NotTheArena:
    """FlashInfer cuts its allocations out of one buffer: what lacks is added to its size."""
    asked, left = fact.first, fact.second
    if asked is None:
        why = "FlashInfer's kernels have a buffer of their own: no lock, and no reserve helps."
        return _of(text, fact, why, f"{NUMBERS[_BUFFER].env}=BYTES")
    default = NUMBERS[_BUFFER].default
    buffer = numbers.get(_BUFFER, default if isinstance(default, int) else 0)
    need = buffer + asked - (left or 0)
    if fact.name == NUMBERS[_BUFFER].env:
        need, buffer = asked, left or buffer
    size = -(-need // _MEBI) * _MEBI
    had = f"{exact(left)} were left" if left is not None else "less was left"
    why = (
        f"FlashInfer's kernels cut their scratch out of a buffer of their own, of "
        f"{exact(buffer)}: {exact(asked)} were asked for and {had}. It is not the arena: no "
        "lock, and no reserve helps."
    )
    found = _of(text, fact, why, f"{NUMBERS[_BUFFER].env}={size}", asked, left)
    return replace(found, set_to=size)


def _no_manager(text: Text, fact: Relative) -> NotTheArena:
    frame = tracebacks.caller(fact.frames)
    why = (
        "vLLM's worker makes the WorkspaceManager in init_device. This process made none: the "
        "layer ran outside a worker, in a worker of another kind, or after a shutdown. No size "
        "and no reserve helps."
    )
    return _of(
        text, fact, why, "init_workspace_manager(device) before the layer runs", frame=frame
    )


def _fitted(text: Text, fact: Relative, numbers: Mapping[str, int]) -> Iterator[NotTheArena]:
    """Only beside something that was reserved before: alone the line is a healthy start's."""
    before = [r for r in text.resizes if r.origin.at < fact.origin.at]
    told = fact.name.lower() == "reserved"
    if not fact.first or not fact.second or not (before or told):
        return
    largest = max(before, key=lambda r: r.after.bytes or 0, default=None)
    had = (largest.after.bytes if largest else None) or None
    need = _need(largest, {**numbers, "max_model_len": fact.second}) if largest else None
    why = (
        f"The reservation was made for {fact.first:,} tokens, before the context was fitted to "
        f"{fact.second:,}: the KV cache pays for what no request can need. Nothing fails."
    )
    knob = f"--max-model-len {fact.second}"
    yield _of(text, fact, why, knob, need, had, _frame(largest))


def _need(resize: Resize, numbers: Mapping[str, int]) -> int | None:
    site = known.match(resize.file or "", resize.function or "")
    return rule_bound(site, numbers).bytes if site else None


def _frame(resize: Resize | None) -> Frame | None:
    if resize is None or not resize.file:
        return None
    return Frame(resize.file, resize.line or 0, resize.function or "")


def _scratch(text: Text, findings: Sequence[Finding]) -> Iterator[NotTheArena]:
    for fault in () if findings else text.faults:
        if not _outside(text, fault):
            continue
        frame = _asker(fault.frames)
        if frame is not None:
            yield _below(text, fault, frame)
        elif life.phase_of(text, fault.origin, fault.frames) in _CAPTURES:
            yield _captured(text, fault)


def _outside(text: Text, fault: Fault) -> bool:
    """Whether memory ran out, and neither in nor after a growth of the arena."""
    if fault.kind != "out_of_memory" or tracebacks.caller(fault.frames):
        return False
    return not symptoms.grew_before(text, fault)


def _asker(frames: Sequence[Frame]) -> Frame | None:
    """The layer's own frame that called the kernel in which memory ran out, or made the
    kernel's own workspace: attention or experts, in any release's chain of calls."""
    inner = len(frames)
    while inner and _is_kernel(frames[inner - 1]):
        inner -= 1
    asker = frames[inner - 1] if inner else None
    if asker is None:
        return None
    if inner == len(frames):  # a buffer that the layer keeps for its kernel
        own = "workspace" in asker.source and not symptoms.is_known(asker)
        return asker if own and _LAYERS.search(asker.path) else None
    return asker if symptoms.is_known(asker) or _LAYERS.search(asker.path) else None


def _is_kernel(frame: Frame) -> bool:
    """Code of a kernel library, or of vLLM's wrappers around one."""
    if "vllm/" in frame.path and "site-packages/" not in frame.path.rpartition("vllm/")[2]:
        return bool(_KERNELS.search(frame.path)) and not symptoms.is_known(frame)
    return not _MODULES.search(frame.path)


def _below(text: Text, fault: Fault, frame: Frame) -> NotTheArena:
    why = (
        f"Memory ran out below this layer, in a kernel's own call ({_inner(fault)}): not "
        "the arena. Its scratch grows with the tokens of a step."
    )
    knob = "--max-num-batched-tokens N   (a smaller N than now), or leave more memory free"
    return _of(text, fault, why, knob, fault.tried_bytes, fault.free_bytes, frame)


def _inner(fault: Fault) -> str:
    frame = fault.frames[-1]
    return f"{tracebacks.base(frame.path)}:{frame.function}"


def _captured(text: Text, fault: Fault) -> NotTheArena:
    why = (
        "Graphs are captured in what KV sizing left free, and a graph keeps its own memory: "
        "not the arena, which no frame here shows."
    )
    knob = (
        "--max-cudagraph-capture-size N   (a smaller N than now), or a smaller "
        "--gpu-memory-utilization"
    )
    found = _of(text, fault, why, knob, fault.tried_bytes, fault.free_bytes)
    return replace(found, kind="graph_memory")


def _of(
    text: Text,
    fact: Relative | Fault,
    why: str,
    knob: str,
    asked: int | None = None,
    had: int | None = None,
    frame: Frame | None = None,
) -> NotTheArena:
    return NotTheArena(
        "kernel_scratch" if isinstance(fact, Fault) else fact.kind,
        text.path,
        fact.origin.line,
        redact(why),
        knob,
        asked,
        had,
        redact(tracebacks.base(frame.path)) if frame else "",
        redact(frame.function) if frame else "",
        (fact.origin.ranks,) if fact.origin.ranks != Ranks() else (),
    )
