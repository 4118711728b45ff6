"""The slicer with nothing but files: a package in miniature."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import bounds_survey
from wstrace.expr.expression import parse
from wstrace.expr.maximum import maximise
from wstrace.slicer.static import Surveyed, survey

FILES = {
    "math_utils.py": "def cdiv(a, b):\n    return -(a // -b)\n",
    "meta.py": """
import torch
class BackendMetadata:
    num_actual_tokens: int
    num_decode_tokens: int
    seq_lens: torch.Tensor
    query_start_loc: torch.Tensor
    decode: "DecodeMetadata | None"
class DecodeMetadata:
    seq_lens: torch.Tensor
""",
    "layer.py": """
import torch
from vllm.distributed import get_dcp_group
from vllm.math_utils import cdiv
from vllm.meta import BackendMetadata
from vllm.worker.workspace import current_workspace_manager

CHUNK = 4 * 1024

class AttentionImpl:
    pass

def gather_shapes(rows, dim, small):
    if small:
        return ((rows, dim // 2), torch.uint8), ((rows, dim // 32), torch.uint8)
    return ((rows, dim), torch.float16), ((rows, 4), torch.uint8)

class Impl(AttentionImpl):
    def __init__(self, num_heads, head_size, small, specs):
        self.num_heads = num_heads
        self.head_size = head_size
        self.small = small
        self.specs = specs
        self.step = 0

    def forward(self, layer, query: torch.Tensor, attn_metadata: BackendMetadata):
        if attn_metadata is None:
            current_workspace_manager().get_simultaneous(*self.specs)
            return
        self.decode(query[: attn_metadata.num_decode_tokens])
        starts = attn_metadata.query_start_loc.tolist()
        for i in range(attn_metadata.num_reqs):
            rows = attn_metadata.seq_lens[i].item() - (starts[i + 1] - starts[i])
            self.prefill(rows)

    def decode(self, query):
        gathered = get_dcp_group().all_gather(query, dim=1)
        n, heads = gathered.shape[:2]
        return current_workspace_manager().get_simultaneous(((n, heads), torch.float32))

    def prefill(self, cached):
        values, scales = gather_shapes(cdiv(cached, 16) * 16, self.head_size, self.small)
        manager = current_workspace_manager()
        return manager.get_simultaneous(values, scales, ((CHUNK,), torch.uint8))

    def advance(self):
        self.step += 1

    def changing(self, meta: BackendMetadata):
        return current_workspace_manager().get_simultaneous(((self.step,), torch.uint8))

    def kept(self):
        return current_workspace_manager().get_simultaneous(*self.specs)

    def unknown(self, meta: BackendMetadata):
        return current_workspace_manager().get_simultaneous(((meta.other,), torch.uint8))

    def planned(self, plan, width: int):
        for start, end, wide in plan:
            size = end - start
            out = current_workspace_manager().get_simultaneous(
                ((size, wide, width), torch.uint8)
            )
""",
    "experts.py": """
import torch
from abc import ABC, abstractmethod
from vllm.meta import BackendMetadata
from vllm.worker.workspace import current_workspace_manager

class Experts(ABC):
    @abstractmethod
    def shape(self, rows): ...

class Triton(Experts):
    def shape(self, rows):
        return (rows, 64)

class Masked(Triton):
    def shape(self, rows):
        more, wide = super().shape(rows)
        return (more + 8, wide)

class Remote(Experts):
    def shape(self, rows):
        return self.plans.get(rows)

class Either(Experts):
    def __init__(self, config):
        super().__init__(inner=Masked(config), other=Triton(config))

class Chosen(Either):
    def shape(self, rows):
        return self.inner.shape(rows)

class Kernel:
    def __init__(self, experts: Experts):
        self.experts = experts

    def allocate(self, meta: BackendMetadata):
        shape = self.experts.shape(meta.num_actual_tokens)
        return current_workspace_manager().get_simultaneous((shape, torch.uint8))
""",
    "distributed.py": "_DCP = None\ndef get_dcp_group():\n    return _DCP\n",
    "worker/workspace.py": "def current_workspace_manager():\n    return manager\n",
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    root = tmp_path / "vllm"
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for folder in (root, root / "worker"):
        (folder / "__init__.py").write_text("")
    return root


def by_function(root: Path) -> dict[str, Surveyed]:
    return {site.function.rpartition(".")[2]: site for site in survey(root)}


def test_drivers_through_files_callers_and_groups(package: Path) -> None:
    decode = by_function(package)["decode"]
    assert decode.stopped is None
    assert decode.drivers == ("num_decode_tokens",)
    assert decode.assumed == ("query_1",)
    values = {"num_decode_tokens": 8, "query_1": 16, "decode_context_parallel_size": 2}
    assert parse(decode.formula or "").evaluate(values) == 8 * 16 * 2 * 4


def test_arms_of_one_condition_stay_together(package: Path) -> None:
    prefill = by_function(package)["prefill"]
    assert prefill.stopped is None
    assert prefill.drivers == ("num_computed_tokens",)
    assert len(prefill.arms) == 2
    values = {"num_computed_tokens": 33, "head_size": 128}
    small = 48 * 64 + -(-48 * 4 // 256) * 256 + 4096
    plain = 48 * 128 * 2 + 256 + 4096
    assert sorted(parse(a).evaluate(values) for a in prefill.arms) == [small, plain]


def test_the_maximum_over_the_drivers_range(package: Path) -> None:
    prefill = by_function(package)["prefill"]
    ranges = {"num_computed_tokens": (0, 4095)}
    found = maximise(parse(prefill.formula or ""), {"head_size": 128}, ranges)
    assert (found.value, found.exact) == (4096 * 256 + 4096 * 4 + 4096, True)


def test_constants_and_stops(package: Path) -> None:
    found = by_function(package)
    assert found["kept"].formula == "specs_bytes"
    assert "changed in Impl.advance" in (found["changing"].stopped or "")
    assert "no role" in (found["unknown"].stopped or "")


def test_open_names_give_a_formula_that_is_not_closed(package: Path) -> None:
    """As in a worker, where they can be read at each request."""
    found = by_function(package)
    planned, unknown = found["planned"], found["unknown"]
    assert planned.formula == "round256((end - start) * wide * width)"
    assert {leaf.kind for leaf in planned.leaves} == {"unbound"}
    assert (unknown.formula, unknown.closed, unknown.share) == ("round256(other)", False, 1)


def test_a_method_left_to_subclasses_is_sliced_for_each(package: Path) -> None:
    allocate = by_function(package)["allocate"]
    formulas = {c.of_class: c.formula for c in allocate.classes}
    assert formulas == {
        "Triton": "round256(num_padded_tokens * 64)",
        "Masked": "round256((num_padded_tokens + 8) * 64)",
        "Remote": None,
        "Chosen": None,
    }
    assert (allocate.share, allocate.closed_share, allocate.closed) == (0.5, 0.5, False)
    assert (allocate.stopped or "").startswith("Remote: ")


def test_the_survey_prints_every_site_and_the_shares(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = bounds_survey.main(["--source", f"9.9.9={package.parent}", "--check"])
    printed = capsys.readouterr().out
    assert code == 1
    assert "vLLM 9.9.9: 7 serving call sites" in printed
    assert "num_decode_tokens <= max_num_seqs" in printed
    assert "formula 92.9%, closed by slicing alone 50.0%" in printed
    assert "formula for 2 of 4 classes; Remote: " in printed
