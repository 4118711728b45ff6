"""What people take for the arena and is not, and growths that somebody's own patch allows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from wstrace.triage.extract import tracebacks
from wstrace.triage.extract.facts import Relative, Resize, origin_at, printed_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wstrace.triage.extract.facts import Frame, Origin, PrintedSize, RelativeKind
    from wstrace.triage.ingest.squeeze import Squeezed

_LINES: Final[tuple[tuple[RelativeKind, str, re.Pattern[str]], ...]] = (
    (
        # FlashInfer's AlignedAllocator, when its buffer has too little left
        "flashinfer_buffer",
        "AlignedAllocator",
        # matches: 'allocatingmemoryfortmp_vwithsize1073741824andalignment16,butonly394bytes'
        re.compile(
            r"(?:allocat\w{1,4}memoryfor)(?P<name>[\w.]{1,60}?)withsize(?P<first>\d+)"
            r"andalignment\d+(?:,butonly(?P<second>\d+)bytes)?"
        ),
    ),
    (
        # vLLM 0.32.0: flashinfer_mla_sparse.py, before it goes on with the smaller one
        "flashinfer_buffer",
        "WORKSPACE_BUFFER_SIZE=",
        # matches: 'VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE=413138944isbelowthe536870912bytes'
        re.compile(
            r"(?P<name>VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE)=(?P<second>\d+)isbelowthe"
            r"(?P<first>\d+)bytes"
        ),
    ),
    (
        # FlashInfer's and TensorRT-LLM's kernels, in other words
        "flashinfer_buffer",
        "orkspace",
        # matches: 'FlashInferworkspacebufferistoosmall:536870912bytesrequired,413138944given'
        re.compile(
            r"(?i:(?P<name>flashinfer|trtllm|fmha)[^.]{0,60}?workspace_?(?:buffer|size)[^.\d]{0,40}?"
            r"(?:toosmall|insufficient|exceed|overflow|notlargeenough))"
            r"(?:[^\d]{1,40}(?P<first>\d{5,})(?:[^\d]{1,40}(?P<second>\d{5,}))?)?"
        ),
    ),
    (
        # vLLM 0.32.0: current_workspace_manager in a process that made none; people add an "is"
        "no_manager",
        "notinitialized",
        # matches: 'WorkspaceManagernotinitialized'
        re.compile(r"(?P<name>WorkspaceManager)(?:is)?notinitialized"),
    ),
    (
        # vLLM 0.32.0: kv_cache_utils.py, after profiling, with --max-model-len auto
        "fitted_context",
        "reducedfrom",
        # matches: 'Auto-fitmax_model_len:reducedfrom262144to150528tofit'
        re.compile(
            r"(?P<name>[Mm]ax_?model_?len):?reducedfrom(?P<first>\d+)to(?P<second>\d+)tofit"
        ),
    ),
    (
        "fitted_context",
        "fittedto",
        # matches: 'reservedfor262,144,fittedto150,528'
        re.compile(
            r"(?P<name>[Rr]eserved)for(?P<first>\d[\d,]*)[^\d]{1,60}fittedto(?P<second>\d[\d,]*)"
        ),
    ),
    (
        # vLLM 0.13.0 to 0.33.0: kv_cache_utils.py, after profiling; `model's` from 0.30 on
        "kv_cache",
        "KVcacheisneeded",
        # matches: "maxseqlen(131072),(24.00GiBKVcacheisneeded,whichislargerthantheavailable"
        re.compile(
            r"(?P<name>maxseqlen)\(?\d+\)?,?\((?P<first>[\d.]+GiB)KVcacheisneeded,?"
            r"(?:whichislargerthantheavailableKVcachememory\((?P<second>[\d.]+GiB)\))?"
        ),
    ),
    (
        # vLLM 0.13.0 to 0.33.0: kv_cache_utils.py, where nothing is left for the cache
        "kv_cache",
        "forthecacheblocks",
        # matches: 'Noavailablememoryforthecacheblocks'
        re.compile(r"(?P<name>Noavailablememory)forthecacheblocks"),
    ),
    (
        # vLLM 0.13.0 to 0.33.0: before the model is loaded; 'GPU' not in every release
        "kv_cache",
        "onstartupislessthandesired",
        # matches: '(9.2/79.1GiB)onstartupislessthandesiredGPUmemoryutilization(0.9,71.2GiB)'
        re.compile(
            r"\((?P<second>[\d.]+)(?:GiB)?/[\d.]+GiB\)(?P<name>onstartup)islessthandesired"
            r"(?:GPU)?memoryutilization\([\d.]+,(?P<first>[\d.]+GiB)\)"
        ),
    ),
    (
        # vLLM 0.13.0 to 0.33.0: the sampler is warmed up after the captures
        "graph_memory",
        "warmingupsampler",
        # matches: 'outofmemoryoccurredwhenwarmingupsamplerwith1024dummyrequests'
        re.compile(r"outofmemoryoccurredwhenwarmingup(?P<name>sampler)"),
    ),
    (
        # Triton, when a kernel's blocks need more on-chip memory than a multiprocessor has
        "shared_memory",
        "outofresource:sharedmemory",
        # matches: 'outofresource:sharedmemory,Required:163840,Hardwarelimit:101376'
        re.compile(
            r"outofresource:(?P<name>sharedmemory)(?:,Required:(?P<first>\d+)"
            r"(?:,Hardwarelimit:(?P<second>\d+))?)?"
        ),
    ),
    (
        # NCCL's own buffers on the device
        "communicator",
        "calloc",
        # matches: 'FailedtoCUDAcallocasync1228800bytes'
        re.compile(r"FailedtoCUDA(?:host)?(?P<name>calloc)(?:async)?(?P<first>\d+)bytes"),
    ),
    (
        # NCCL, when an allocation of its own failed
        "communicator",
        "ncclUnhandledCudaError",
        # matches: "ncclUnhandledCudaError:CalltoCUDAfunctionfailed.Lasterror:Cudafailure2'out"
        re.compile(
            r"ncclUnhandledCudaError(?:(?!File')[^\n]){0,200}?(?P<name>Cudafailure)(?:2)?'out"
        ),
    ),
    (
        # NCCL's buffers between processes of a host
        "communicator",
        "/dev/shm/nccl",
        # matches: 'sharedmemorysegment/dev/shm/nccl-x8Hq0b(size9637888)'
        re.compile(r"(?P<name>/dev/shm)/nccl-\w{1,20}\(size(?P<first>\d+)\)"),
    ),
    (
        # the buffers of DeepEP (NVSHMEM) and MoRI, in their own words
        "all2all_buffer",
        "",
        # matches: 'DeepEPerror:NVSHMEMsymmetricheapistoosmall:1073741824bytesrequired'
        re.compile(
            r"(?i:(?P<name>nvshmem|mori|deep_?ep)(?:(?!Traceback|File')[^\n]){0,100}?"
            r"(?:heap|buffer|malloc|rdma_bytes|nvl_bytes)(?:(?!Traceback|File')[^\n]){0,60}?"
            r"(?:toosmall|insufficient|outofmemory|notenough|exceed|exhausted|isfull"
            r"|failedtoalloc\w*|allocationfailed|outofsymmetric))"
            r"(?:[^\d]{1,40}(?P<first>\d{5,})(?:[^\d]{1,40}(?P<second>\d{5,}))?)?"
        ),
    ),
    (
        "all2all_buffer",
        "",
        # matches: 'Failedtoallocate2147483648bytesfromthesymmetricheap,increaseMORI_SHMEM_HEAP'
        re.compile(
            r"(?i:failedtoallocate(?P<first>\d{5,})bytes[^\n]{0,120}?"
            r"(?P<name>nvshmem|mori|deepep)_\w*(?:heap|size))"
        ),
    ),
    (
        "all2all_buffer",
        "",
        # matches: "deep_ep.cpp:1105'layout.total_bytes<=num_rdma_bytes"
        re.compile(
            r"(?i:(?P<name>deep_?ep)[^\n]{0,120}?'[^'\n]{0,80}<=?num_(?:rdma|nvl)_bytes)"
        ),
    ),
)
# matches: 'MoRI'
_ALL2ALL: Final = re.compile(r"(?i:nvshmem|mori_|\bmori|deep_?ep)")


def relatives_of(
    squeezed: Squeezed, stream: str, stack: list[tuple[int, Frame]]
) -> Iterator[tuple[int, Relative]]:
    """Every such message of one process's text, with its position there."""
    text = squeezed.text
    all2all = _ALL2ALL.search(text) is not None
    for kind, word, pattern in _LINES:
        if not (word in text if word else all2all):
            continue
        for match in pattern.finditer(text):
            frames = tracebacks.before(match.start(), stack, squeezed)
            yield match.start(), _relative(kind, match, squeezed, stream, frames)


def _relative(
    kind: RelativeKind,
    match: re.Match[str],
    squeezed: Squeezed,
    stream: str,
    frames: tuple[Frame, ...],
) -> Relative:
    groups = match.groupdict()
    return Relative(
        kind,
        origin_at(squeezed, match.start(), stream),
        groups["name"],
        _number(groups.get("first")),
        _number(groups.get("second")),
        frames,
    )


def _number(text: str | None) -> int | None:
    """A plain number, or the bytes of a size with a unit."""
    if not text:
        return None
    if text[-1].isalpha():
        return printed_size(text).bytes
    return round(float(text) * _GIBI) if "." in text else int(text.replace(",", ""))


_GIBI: Final = 1 << 30


# matches: 'growing anyway'
_GROWS: Final = re.compile(
    r"(?i)\b(?:grow(?:ing|n|s)|grew|re-?siz(?:ed|ing)|re-?alloc\w+|expand(?:ed|ing)"
    r"|enlarg(?:ed|ing))\b"
)
# matches: 'post-lock growth'
_GROWTH: Final = re.compile(r"(?i)\b(?:growth|resize)\b")
# matches: 'the locked arena'
_ARENA: Final = re.compile(r"(?i)workspace|arena")
# matches: '2.06 MB'
_SIZE: Final = re.compile(r"(?<![\w.])(\d[\d,]*(?:\.\d+)?) ?([KMG]i?B|bytes)\b")
# matches: 'requires 2.06 MB'
_ASKED: Final = re.compile(r"(?i)\b(?:requires?|required|needs?|asked|wants?|requested)\b")
# matches: 'turboquant_attn.py:747:_continuation_prefill'
_CALLER: Final = re.compile(
    r"(?P<file>[\w.\-]+\.pyc?):(?P<line>\d+)(?::(?P<function>[\w<>]+))?"
)


def grows_by_hand(text: str) -> bool:
    """True for a line that says that a locked arena grew."""
    if "lock" not in text or "not allowed" in text or "locked but alloc" in text:
        return False
    grows = _GROWS.search(text) or (_GROWTH.search(text) and _CALLER.search(text))
    return bool(grows and _ARENA.search(text))


def growths_by_hand(squeezed: Squeezed, stream: str) -> Iterator[tuple[int, Resize]]:
    """Lines of a patch that lets a locked arena grow and says so; vLLM has none such."""
    for index, line in enumerate(squeezed.lines):
        text = line.text
        if not grows_by_hand(text):
            continue
        sizes = [printed_size(number + unit) for number, unit in _SIZE.findall(text)]
        if len(sizes) != 2 or sizes[0] == sizes[1]:
            continue
        position = squeezed.starts[index]
        yield position, _by_hand(text, sizes, origin_at(squeezed, position, stream))


def _by_hand(text: str, sizes: list[PrintedSize], origin: Origin) -> Resize:
    first = _SIZE.search(text)
    asks = first is not None and _ASKED.search(text, 0, first.start())
    before, after = sizes if not asks else reversed(sizes)
    found = [*_CALLER.finditer(text)]
    site = next((one for one in found if one["function"]), found[0] if found else None)
    return Resize(
        origin,
        file=site["file"] if site else None,
        line=int(site["line"]) if site else None,
        function=site["function"] if site else None,
        before=before,
        after=after,
        by_hand=True,
    )
