"""Requests whose formula must come out whole: right on other values than those seen."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.slicer.fakes import Worker, tensor
from wstrace.expr.expression import parse
from wstrace.slicer.slicer import Sliced


def closed(sliced: Sliced) -> dict[str, Any]:
    assert sliced.stopped is None, sliced.stopped
    assert sliced.formula is not None
    return {leaf.role or leaf.name: leaf for leaf in sliced.leaves}


def bytes_at(sliced: Sliced, **changed: int) -> int:
    """The formula with drivers (by role) and constants (by name) replaced."""
    assert sliced.formula is not None
    values = {}
    for leaf in sliced.leaves:
        assert leaf.value is not None
        values[leaf.name] = changed.pop(leaf.role or leaf.name, leaf.value)
    assert not changed, f"no leaf for {changed}"
    return parse(sliced.formula).evaluate(values)


CONTINUATION = """
import math

class Layer:
    def __init__(self, heads, dim, block):
        self.num_kv_heads = heads
        self.head_size = dim
        self.block_size = block

    def forward(self, query, meta):
        starts = meta.query_start_loc.tolist()
        lengths = meta.seq_lens.tolist()
        for i in range(len(lengths)):
            q_len = starts[i + 1] - starts[i]
            if q_len == 0:
                continue
            total = lengths[i]
            self.continue_one(query, total - q_len)

    def continue_one(self, query, cached_len):
        alloc = math.ceil(cached_len / self.block_size) * self.block_size
        shape = (1, self.num_kv_heads, alloc, self.head_size)
        k, v = manager.get_simultaneous((shape, torch.float16), (shape, torch.float16))
        return k, v
"""


def run_continuation(worker: Worker, source: str = CONTINUATION) -> Sliced:
    layer = worker.load(source).Layer(4, 128, 16)
    meta = worker.metadata(
        seq_lens=tensor(values=[40, 5088 + 992]), query_start_loc=tensor(values=[0, 1, 993])
    )
    layer.forward(tensor(993, 16, 128), meta)
    return worker.manager.last


def test_the_cached_length_of_the_field_case(worker: Worker) -> None:
    sliced = run_continuation(worker)
    leaves = closed(sliced)
    assert leaves["num_computed_tokens"].kind == "driver"
    assert leaves["num_computed_tokens"].value == 5088
    assert set(leaves) == {"num_computed_tokens", "num_kv_heads", "head_size", "block_size"}
    assert bytes_at(sliced) == 10_420_224
    assert bytes_at(sliced, num_computed_tokens=32767) == 67_108_864
    assert any("math.ceil" in line for line in sliced.statements)
    assert all(line.count(":") >= 2 for line in sliced.statements)


def test_renaming_locals_and_parameters_changes_nothing(worker: Worker) -> None:
    renamed = CONTINUATION
    for old, new in (
        ("cached_len", "zz"),
        ("q_len", "seq_len_x"),
        ("lengths", "b"),
        ("i", "j"),
    ):
        renamed = "".join(_rename(renamed, old, new))
    assert run_continuation(worker, renamed).formula == run_continuation(worker).formula


def _rename(text: str, old: str, new: str) -> str:
    import re

    return re.sub(rf"(?<![\w.]){old}\b", new, text)


def test_the_subtraction_may_come_in_any_order(worker: Worker) -> None:
    source = CONTINUATION.replace(
        "            total = lengths[i]\n            self.continue_one(query, total - q_len)",
        "            self.continue_one(query, lengths[i] - (starts[i + 1] - starts[i]))",
    )
    assert bytes_at(run_continuation(worker, source), num_computed_tokens=32767) == 67_108_864


def test_items_of_tensors_and_zip(worker: Worker) -> None:
    loop = CONTINUATION[CONTINUATION.index("        starts =") :]
    loop = loop[: loop.index("    def continue_one")]
    other = """
        lens = meta.query_start_loc[1:] - meta.query_start_loc[:-1]
        self.continue_one(query, meta.seq_lens[1].item() - int(lens[1]))

"""
    module = worker.load(CONTINUATION.replace(loop, other))
    cls = module.Layer

    class Starts:
        pass

    meta = worker.metadata(seq_lens=tensor(values=[40, 6080]))
    meta.query_start_loc = _Lens([0, 1, 993])
    cls(4, 128, 16).forward(tensor(993, 16, 128), meta)
    assert bytes_at(worker.manager.last, num_computed_tokens=32767) == 67_108_864


class _Lens(list):  # type: ignore[type-arg]
    def __getitem__(self, key: Any) -> Any:
        found = list.__getitem__(self, key)
        return _Lens(found) if isinstance(key, slice) else found

    def __sub__(self, other: Any) -> Any:
        return _Lens(a - b for a, b in zip(self, other, strict=True))


def test_per_token_through_an_actual_slice(worker: Worker) -> None:
    module = worker.load("""
class Impl:
    def __init__(self):
        self.heads = 8
    def forward(self, query, meta):
        n = meta.num_actual_tokens
        self.inner(query[:n])
    def inner(self, q):
        rows, _, dim = q.shape
        manager.get_simultaneous(((rows, self.heads, dim), torch.float32))
""")
    meta = worker.metadata(num_actual_tokens=37)
    module.Impl().forward(tensor(64, 8, 96), meta)
    sliced = worker.manager.last
    assert sliced.stopped is not None
    assert "not followed" in sliced.stopped or "caller" in sliced.stopped
    assert "num_padded_tokens" in {leaf.role for leaf in sliced.leaves}
    assert bytes_at(sliced) == 37 * 8 * 96 * 4


ENTRY = """
def unified_attention_with_output(query, key, impl, meta):
    impl.forward(impl, query, key, meta)
"""
PER_TOKEN = """
class Impl:
    def forward(self, layer, q, key, meta):
        x = q.view(-1, 8 * 96)
        manager.get_simultaneous(((x.shape[0], 2, q.size(-1)), q.dtype))
"""


def test_per_token_from_vllms_own_entry(worker: Worker) -> None:
    entry = worker.load(ENTRY, "vllm.fake_layer")
    entry.unified_attention_with_output(
        tensor(64, 8, 96), tensor(64, 8, 96), worker.load(PER_TOKEN).Impl(), worker.metadata()
    )
    sliced = worker.manager.last
    leaves = closed(sliced)
    assert leaves["num_padded_tokens"].value == 64
    assert bytes_at(sliced, num_padded_tokens=1000) == -(-1000 * 2 * 96 * 2 // 256) * 256
    assert "assumed constant" in leaves["query_2"].why


def test_a_dimension_that_was_assumed_constant_and_changes(worker: Worker) -> None:
    entry = worker.load(ENTRY, "vllm.fake_changing")
    impl = worker.load(PER_TOKEN.replace("view(-1, 8 * 96)", "view(-1, 96)")).Impl()
    for rows, heads, width in ((64, 8, 96), (32, 8, 96), (64, 8, 192), (64, 8, 96)):
        query = tensor(rows, heads, width)
        entry.unified_attention_with_output(query, query, impl, worker.metadata())
    stops = [sliced.stopped for sliced in worker.manager.results]
    assert stops[:2] == [None, None]
    assert all("not constant" in (stop or "") for stop in stops[2:])


def test_the_same_entry_outside_vllm_binds_nothing(worker: Worker) -> None:
    entry = worker.load(ENTRY)
    entry.unified_attention_with_output(
        tensor(64, 8, 96), tensor(64, 8, 96), worker.load(PER_TOKEN).Impl(), worker.metadata()
    )
    assert worker.manager.last.stopped is not None
    assert not [leaf for leaf in worker.manager.last.leaves if leaf.kind == "driver"]


@pytest.mark.parametrize(
    ("field", "role"),
    [
        ("num_reqs", "num_reqs"),
        ("num_decodes", "num_decodes"),
        ("num_decode_tokens", "num_decode_tokens"),
        ("max_query_len", "query_len"),
        ("max_seq_len", "seq_len"),
        ("num_actual_tokens", "num_padded_tokens"),
    ],
)
def test_scalar_fields_of_metadata(worker: Worker, field: str, role: str) -> None:
    module = worker.load(f"""
def decode(meta):
    rows = meta.{field}
    manager.get_simultaneous(((rows, 512), torch.float32))
""")
    module.decode(worker.metadata(**{field: 7}))
    leaves = closed(worker.manager.last)
    assert leaves[role].source == f"FakeMetadata.{field}"
    assert bytes_at(worker.manager.last, **{role: 9}) == 9 * 2048


def test_counts_and_widths_of_metadata_tensors(worker: Worker) -> None:
    module = worker.load("""
def gather(meta):
    rows, width = meta.block_table.shape
    other = len(meta.seq_lens) + meta.slot_mapping.shape[0]
    manager.get_simultaneous(((rows * width + other,), torch.uint8))
""")
    module.gather(
        worker.metadata(
            block_table=tensor(6, 40), seq_lens=tensor(values=[1] * 6), slot_mapping=tensor(128)
        )
    )
    leaves = closed(worker.manager.last)
    assert set(leaves) == {"num_reqs", "max_blocks_per_req", "num_padded_tokens"}
    assert bytes_at(worker.manager.last, max_blocks_per_req=100) == 768


def test_a_field_without_a_role_is_unbound(worker: Worker) -> None:
    module = worker.load("""
def f(meta):
    manager.get_simultaneous(((meta.num_splits, 64), torch.float32))
""")
    module.f(worker.metadata(num_splits=3))
    assert "no role" in (worker.manager.last.stopped or "")


def test_the_same_names_on_someone_elses_class_bind_nothing(worker: Worker) -> None:
    module = worker.load("""
class OwnMetadata:
    def __init__(self):
        self.num_reqs = 3
    def grow(self):
        self.num_reqs += 1

def f(meta):
    manager.get_simultaneous(((meta.num_reqs, 64), torch.float32))
""")
    module.f(module.OwnMetadata())
    sliced = worker.manager.last
    assert [leaf.kind for leaf in sliced.leaves] == ["unbound"]
    assert "grow" in (sliced.stopped or "")


def test_both_arms_and_the_maximum(worker: Worker) -> None:
    module = worker.load("""
def f(meta):
    if meta.num_reqs > 4:
        width = 64
        rows = meta.num_reqs
    else:
        width = 1024
        rows = 4
    manager.get_simultaneous(((rows, width), torch.float32))
""")
    module.f(worker.metadata(num_reqs=9))
    sliced = worker.manager.last
    closed(sliced)
    assert sorted(parse(a).evaluate({"num_reqs": 9}) for a in sliced.arms) == [9 * 256, 16384]
    assert bytes_at(sliced, num_reqs=9) == 16384
    assert bytes_at(sliced, num_reqs=100) == 100 * 256


def test_an_arm_that_a_constant_decides_is_folded(worker: Worker) -> None:
    module = worker.load("""
class Layer:
    def __init__(self, fp8):
        self.fp8 = fp8
        self.scale = None
    def f(self, meta):
        size = torch.float32
        rows = meta.num_reqs
        if self.fp8:
            size = torch.uint8
        if self.scale is not None:
            rows = rows * 1000
        manager.get_simultaneous(((rows, 256), size))
""")
    module.Layer(True).f(worker.metadata(num_reqs=9))
    assert worker.manager.last.formula == "round256(num_reqs * 256)"
    assert worker.manager.last.arms == ()


def test_early_returns_and_guards(worker: Worker) -> None:
    module = worker.load("""
def f(meta, out=None):
    rows = meta.num_reqs
    if rows == 0:
        rows = 5
        return None
    if rows < 0:
        rows = 7
        raise ValueError
    rows += 1
    rows = max(rows, 2)
    manager.get_simultaneous(((rows, 128), torch.uint8))
""")
    module.f(worker.metadata(num_reqs=3))
    closed(worker.manager.last)
    assert worker.manager.last.formula == "round256(max(num_reqs + 1, 2) * 128)"


def test_specs_in_a_list_with_appends(worker: Worker) -> None:
    module = worker.load("""
def f(meta):
    extra = meta.num_splits > 1
    specs = [((meta.num_reqs, 64), torch.float32)]
    specs.append(((meta.num_reqs, 32), torch.float32))
    if extra:
        specs.append(((1024,), torch.uint8))
    specs += [((256,), torch.uint8)]
    manager.get_simultaneous(*specs)
""")
    module.f(worker.metadata(num_reqs=5, num_splits=2))
    sliced = worker.manager.last
    closed(sliced)
    assert len(sliced.arms) == 2
    assert bytes_at(sliced, num_reqs=8) == 8 * 256 + 1024 + 1024 + 256


def test_constant_specs_kept_on_self_are_read(worker: Worker) -> None:
    module = worker.load("""
def native_rows():
    return open  # nothing that could be parsed

class Layer:
    def __init__(self, rows):
        self.spec = ((rows, 64), torch.float32)
        self.specs = {"a": ((rows,), torch.uint8)}
    def f(self):
        manager.get_simultaneous(self.spec, self.specs["a"])
""")
    module.Layer(300).f()
    sliced = worker.manager.last
    closed(sliced)
    assert {leaf.kind for leaf in sliced.leaves} == {"constant"}
    assert bytes_at(sliced) == 300 * 256 + 512


def test_callees_properties_and_helpers_are_inlined(worker: Worker) -> None:
    module = worker.load("""
def pad(n, to=16):
    return (n + to - 1) // to * to

def shapes(n, heads):
    if heads == 1:
        return (n,), (n, 2)
    return (n, heads), (n, heads, 2)

class Layer:
    def __init__(self):
        self._heads = 4
    @property
    def heads(self):
        return self._heads * 2
    def width(self, n):
        return pad(n)
    def f(self, meta):
        a, b = shapes(self.width(meta.num_reqs), self.heads)
        manager.get_simultaneous((a, torch.float32), (b, torch.float32))
""")
    module.Layer().f(worker.metadata(num_reqs=5))
    sliced = worker.manager.last
    closed(sliced)
    assert bytes_at(sliced, num_reqs=33) == 48 * 8 * 4 + 48 * 8 * 8


def test_bit_tricks_and_module_constants(worker: Worker) -> None:
    module = worker.load("""
BLOCK = 64
def cdiv(a, b):
    return -(-a // b)
def next_power(n):
    return 1 << (n - 1).bit_length()
def f(meta):
    rows = next_power(meta.num_reqs)
    cols = (meta.max_query_len + 15) & ~15
    tiles = cdiv(cols, BLOCK)
    manager.get_simultaneous(((rows << 1, tiles, cols >> 2), torch.uint8))
""")
    module.f(worker.metadata(num_reqs=5, max_query_len=100))
    sliced = worker.manager.last
    closed(sliced)
    assert bytes_at(sliced) == -(-16 * 2 * 28 // 256) * 256
    assert "next_pow2" in (sliced.formula or "")
    assert bytes_at(sliced, num_reqs=9, query_len=129) == -(-32 * 3 * 36 // 256) * 256


def test_parameters_through_four_callers_and_not_five(worker: Worker) -> None:
    chain = "".join(f"def f{i}(n):\n    f{i + 1}(n)\n" for i in range(5))
    module = worker.load(
        chain
        + "def f5(n):\n    manager.get_simultaneous(((n, 64), torch.float32))\n"
        + "def four(meta):\n    f2(meta.num_reqs)\n"
        + "def six(meta):\n    f0(meta.num_reqs)\n"
    )
    module.four(worker.metadata(num_reqs=3))
    assert set(closed(worker.manager.last)) == {"num_reqs"}
    module.six(worker.metadata(num_reqs=3))
    assert "4 callers" in (worker.manager.last.stopped or "")


def test_wrappers_that_pass_everything_on(worker: Worker) -> None:
    module = worker.load("""
import functools
def traced(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)
    return wrapper

@traced
def inner(n, *, width):
    manager.get_simultaneous(((n, width), torch.float32))

def outer(meta):
    inner(meta.num_reqs, width=64)
""")
    module.outer(worker.metadata(num_reqs=3))
    assert worker.manager.last.formula == "round256(num_reqs * 64 * 4)"


def test_a_config_field_is_a_constant_by_its_name(worker: Worker) -> None:
    config = worker.load(
        "class SchedulerConfig:\n    def __init__(self):\n        self.max_num_seqs = 8\n"
        "    def tune(self):\n        self.max_num_seqs = 9\n",
        "vllm.fake_config",
    )
    module = worker.load("""
def f(config):
    manager.get_simultaneous(((config.max_num_seqs, 64), torch.float32))
""")
    module.f(config.SchedulerConfig())
    assert closed(worker.manager.last)["max_num_seqs"].kind == "constant"
