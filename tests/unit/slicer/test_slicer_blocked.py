"""Where the slice must stop: a formula that is too short would be believed."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from tests.unit.slicer.fakes import Worker, float32, tensor
from wstrace.expr.expression import parse
from wstrace.slicer.slicer import Sliced, slice_request


def run(worker: Worker, body: str, **fields: Any) -> Sliced:
    indented = "\n".join(f"    {line}" for line in body.strip().splitlines())
    module = worker.load(f"import math\nSEEN = []\ndef f(meta):\n{indented}\n")
    module.f(worker.metadata(**{"num_reqs": 5, **fields}))
    return worker.manager.last


ASK = "manager.get_simultaneous(((rows, 64), torch.float32))"
LIST = "specs = [((meta.num_reqs, 64), torch.float32)]\n"
ASK_LIST = "\nmanager.get_simultaneous(*specs)"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("for _ in range(2): specs.append(((64,), torch.float32))", "changed in a loop"),
        ("specs[0] = ((512,), torch.float32)", "element is assigned"),
        ("specs.insert(0, ((512,), torch.float32))", "insert"),
        ("more = specs\nmore.append(((512,), torch.float32))", "another name"),
        ("holder = (specs, 1)\nholder[0].append(((512,), torch.float32))", "another name"),
        ("(lambda s: s.append(((512,), torch.float32)))(specs)", "handed to"),
        ("def add():\n    specs.append(((512,), torch.float32))\nadd()", "inner function"),
        ("SEEN.append(specs)", "handed to append"),
        ("while len(specs) < 2:\n    specs += [((64,), torch.float32)]", "in a loop"),
        ("with open(__file__):\n    specs.pop()\n    specs.append(((9,), torch.uint8))", "pop"),
        ("del specs[:]\nspecs.append(((9,), torch.uint8))", "deleted"),
        ("specs = list(reversed(specs))", "reversed"),
    ],
)
def test_a_changed_list_of_specs(worker: Worker, change: str, why: str) -> None:
    sliced = run(worker, LIST + change + ASK_LIST)
    assert sliced.formula is None
    assert why in (sliced.stopped or "")
    assert "third_party" in (sliced.stopped or "")


def test_a_list_grown_after_the_call_in_the_same_loop(worker: Worker) -> None:
    body = "specs = []\nfor i in range(2):\n    specs.append(((64,), torch.float32))\n"
    sliced = run(worker, body + "    manager.get_simultaneous(*specs)")
    assert sliced.formula is None
    assert "loop" in (sliced.stopped or "")


def test_a_list_kept_on_self_and_appended_to(worker: Worker) -> None:
    module = worker.load("""
class Layer:
    def __init__(self):
        self.specs = [((64,), torch.float32)]
    def f(self):
        specs = self.specs
        specs.append(((512,), torch.float32))
        manager.get_simultaneous(*specs)
    def g(self):
        self.specs.append(((512,), torch.float32))
        manager.get_simultaneous(*self.specs)
""")
    module.Layer().f()
    assert worker.manager.last.formula is None
    module.Layer().g()
    assert worker.manager.last.stopped is not None


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("rows, cols = [meta.num_reqs, 2][:2]\nrows = sum(range(rows))", "sum"),
        ("rows = 0\nfor _ in range(3):\n    rows += meta.num_reqs", "in a loop"),
        ("rows = meta.num_reqs\nwhile rows < 64:\n    rows *= 2", "in a loop"),
        ("rows = [x for x in range(9) if x][2]", "comprehension"),
        ("rows = meta.num_reqs / 2\nrows = hash(rows) % 7", "hash"),
        ("rows = {'a': meta.num_reqs}['a']", "Dict"),
        ("if (rows := meta.num_reqs) > 1: pass", "inside an expression"),
        ("try:\n    rows = meta.num_reqs\nexcept ValueError:\n    rows = 10**6", "try"),
        (
            "match meta.num_reqs:\n    case 5:\n        rows = 5\n    case _:\n        pass",
            "match",
        ),
        ("def g():\n    nonlocal rows\n    rows = 7\nrows = 5\ng()", "inner function"),
        ("rows = eval('5')", "eval"),
        ("rows = int(str(meta.num_reqs))", "str"),
        ("rows = (lambda: SEEN.append(1) or 7)()", "Lambda"),
    ],
)
def test_a_number_that_is_not_understood_is_unbound(
    worker: Worker, body: str, why: str
) -> None:
    sliced = run(worker, f"{body}\n{ASK}")
    assert why in (sliced.stopped or ""), sliced.stopped
    assert sliced.formula is None or [leaf.kind for leaf in sliced.leaves] == ["unbound"]


def test_a_rebound_parameter_is_not_the_argument(worker: Worker) -> None:
    module = worker.load("""
def grow(n):
    return [n * 10][0] if n in SEEN else sum([n] * 10)
SEEN = set()
def inner(rows):
    rows = grow(rows)
    manager.get_simultaneous(((rows, 64), torch.float32))
def f(meta):
    inner(meta.num_reqs)
""")
    module.f(worker.metadata(num_reqs=5))
    sliced = worker.manager.last
    assert (
        sliced.stopped is not None
        or parse(sliced.formula or "0").evaluate({"num_reqs": 5}) == 50 * 256
    )


def test_a_tensor_rebound_after_a_projection(worker: Worker) -> None:
    module = worker.load(
        """
def project(x, rows):
    return x.view(-1, rows)
def unified_attention(query, rows):
    query = project(query, rows)
    manager.get_simultaneous(((query.shape[0], query.shape[1]), torch.float32))
""",
        "vllm.fake_rebound",
    )
    module.unified_attention(tensor(8, 32), 16)
    sliced = worker.manager.last
    values = {leaf.name: leaf.value for leaf in sliced.leaves}
    assert sliced.formula is not None
    assert parse(sliced.formula).evaluate(values) == 16 * 16 * 4  # type: ignore[arg-type]
    assert sliced.stopped is not None  # 16 is a literal of the test's frame? no: a parameter


def test_unpacking_a_shape_that_is_not_known(worker: Worker) -> None:
    sliced = run(
        worker,
        "rows, _ = SEEN_SHAPE[:2] if SEEN else meta.num_splits.shape[:2]\n" + ASK,
        num_splits=tensor(5, 6),
    )
    assert sliced.stopped is not None


def test_a_tuple_parameter_proves_nothing(worker: Worker) -> None:
    module = worker.load("""
def inner(shape):
    manager.get_simultaneous((shape, torch.float32))
def f(meta):
    for shape in [(3, 64), (4, 64)]:
        inner(shape)
""")
    module.f(worker.metadata())
    sliced = worker.manager.last
    assert "proves nothing" in (sliced.stopped or "")
    assert {leaf.kind for leaf in sliced.leaves} == {"unbound"}


def test_a_loop_variable_proves_nothing(worker: Worker) -> None:
    sliced = run(worker, f"for rows in range(1, 4):\n    {ASK}")
    assert "position in a loop" in (sliced.stopped or "")


def test_the_lengths_of_two_requests_are_not_subtracted(worker: Worker) -> None:
    body = """
lens, starts = meta.seq_lens.tolist(), meta.query_start_loc.tolist()
q = starts[1] - starts[0]
rows = lens[1] - q
"""
    sliced = run(
        worker,
        body + ASK,
        seq_lens=tensor(values=[9, 50]),
        query_start_loc=tensor(values=[0, 4, 8]),
    )
    assert "num_computed_tokens" not in {leaf.role for leaf in sliced.leaves}


OFF_BY_ONE = [
    "for i, n in enumerate(lens, 1):\n    q = starts[i] - starts[i - 1]",
    "for i, n in zip(range(1, 3), lens):\n    q = starts[min(i + 1, 2)] - starts[min(i, 1)]",
    "for i, n in zip(range(1, 3), lens):\n    q = starts[i] - starts[i - 1]",
    "for n in lens[:1]:\n    q = starts[-1] - starts[-2]",
    "for n in [lens[-2]]:\n    q = starts[-1] - starts[-2]",
    "n = lens[-2]\nfor _ in [1]:\n    q = starts[-1] - starts[-2]",
    "n, j = lens[-2], 2\nfor _ in [1]:\n    q = starts[-j + 1] - starts[-j]",
    "n, cut = lens[1], starts[:2]\nfor _ in [1]:\n    q = cut[-1] - cut[-2]",
    "for i, n in enumerate(lens[1:]):\n    q = starts[i + 1] - starts[i]",
]


@pytest.mark.parametrize("loop", OFF_BY_ONE)
def test_positions_that_do_not_count_the_same_request(worker: Worker, loop: str) -> None:
    body = "lens, starts = meta.seq_lens.tolist(), meta.query_start_loc.tolist()\n"
    sliced = run(
        worker,
        f"{body}{loop}\n    rows = n - q\n    {ASK}",
        seq_lens=tensor(values=[30, 50]),
        query_start_loc=tensor(values=[0, 4, 10]),
    )
    assert "num_computed_tokens" not in {leaf.role for leaf in sliced.leaves}


def test_the_last_request_from_the_end(worker: Worker) -> None:
    body = "lens, starts = meta.seq_lens.tolist(), meta.query_start_loc.tolist()\n"
    sliced = run(
        worker,
        f"{body}rows = lens[-1] - (starts[-1] - starts[-2])\n{ASK}",
        seq_lens=tensor(values=[30, 50]),
        query_start_loc=tensor(values=[0, 4, 10]),
    )
    assert [(leaf.role, leaf.value) for leaf in sliced.leaves] == [("num_computed_tokens", 44)]


def test_lengths_of_two_metadata_objects_are_not_subtracted(worker: Worker) -> None:
    module = worker.load("""
def f(one, two):
    starts = two.query_start_loc.tolist()
    rows = one.seq_lens.tolist()[0] - (starts[1] - starts[0])
    manager.get_simultaneous(((rows, 64), torch.float32))
""")
    starts = tensor(values=[0, 4])
    module.f(
        worker.metadata(seq_lens=tensor(values=[50])), worker.metadata(query_start_loc=starts)
    )
    assert "num_computed_tokens" not in {leaf.role for leaf in worker.manager.last.leaves}


def test_an_attribute_written_outside_the_constructor(worker: Worker) -> None:
    module = worker.load("""
class Layer:
    def __init__(self):
        self.rows = 4
        self.other = 4
        self.third = 4
    def forward(self):
        self.rows = max(self.rows, 8)
        self.ask()
    def ask(self):
        manager.get_simultaneous(((self.rows, 64), torch.float32))
    def ask_other(self):
        manager.get_simultaneous(((self.other, 64), torch.float32))
    def ask_third(self):
        setattr(self, "third", 9)
        manager.get_simultaneous(((self.third, 64), torch.float32))

def tune(layer):
    layer.other = 16
""")
    layer = module.Layer()
    layer.forward()
    assert "Layer.forward" in (worker.manager.last.stopped or "")
    layer.ask_other()
    assert "outside Layer" in (worker.manager.last.stopped or "")
    layer.ask_third()
    assert "ask_third" in (worker.manager.last.stopped or "")


def test_an_attribute_stored_just_before_the_call(worker: Worker) -> None:
    sliced = run(worker, f"meta.num_reqs = 5 + 2\nrows = meta.num_reqs\n{ASK}")
    assert "assigned in the same function" in (sliced.stopped or "")


def test_a_global_that_is_rebound(worker: Worker) -> None:
    module = worker.load("""
ROWS = 4
def grow():
    global ROWS
    ROWS = 8
def f():
    manager.get_simultaneous(((ROWS, 64), torch.float32))
""")
    module.f()
    assert "may be rebound" in (worker.manager.last.stopped or "")


def test_nothing_of_the_workers_is_run(worker: Worker) -> None:
    module = worker.load("""
RAN = []
class Layer:
    @property
    def rows(self):
        RAN.append(1)
        return 4
    def __getattr__(self, name):
        RAN.append(name)
        return 4
    def ask(self):
        before = self.missing, self.rows
        RAN.clear()
        manager.get_simultaneous(((self.rows, self.missing), torch.float32))
""")
    module.Layer().ask()
    assert module.RAN == [1, "missing"]  # once each, by the layer itself
    assert worker.manager.last.formula is None


def test_equal_values_bind_nothing(worker: Worker) -> None:
    module = worker.load("""
def inner(rows, meta):
    manager.get_simultaneous(((rows, 64), torch.float32))
""")
    rows = int("5")
    module.inner(rows, worker.metadata(num_reqs=5, num_decodes=5))
    assert [leaf.kind for leaf in worker.manager.last.leaves] == ["unbound"]


def test_c_code_between_caller_and_callee(worker: Worker) -> None:
    module = worker.load("""
def inner(rows, key=None):
    manager.get_simultaneous(((rows, 64), torch.float32))
    return rows
def f(meta):
    sorted([9], key=inner)
    list(map(inner, [meta.num_reqs]))
""")
    module.f(worker.metadata(num_reqs=5))
    for sliced in worker.manager.results:
        assert [leaf.kind for leaf in sliced.leaves] == ["unbound"]


def test_the_self_check_catches_source_that_lies(worker: Worker) -> None:
    module = worker.load("""
def f(meta):
    rows = meta.num_reqs
    manager.get_simultaneous(((rows, 64), torch.float32))
""")
    original = module.f.__code__
    module.f.__code__ = original.replace(
        co_consts=tuple(640 if c == 64 else c for c in original.co_consts)
    )
    if 64 not in original.co_consts:
        pytest.skip("this Python keeps the literal elsewhere")
    module.f(worker.metadata(num_reqs=5))
    assert worker.manager.last.formula is None
    assert worker.manager.last.stopped == "self-check: formula gives 1280, request was 12800"


def test_no_source(worker: Worker) -> None:
    names: dict[str, Any] = {"manager": worker.manager, "float32": float32}
    exec("def f():\n    manager.get_simultaneous(((5, 64), float32))\nf()", names)
    assert worker.manager.last.formula is None
    assert "source" in (worker.manager.last.stopped or "")


def test_it_never_raises() -> None:
    class Broken(types.SimpleNamespace):
        @property
        def shape(self) -> Any:
            raise OSError

    for specs in ([], [("x", 3)], [((1,), Broken())], None):
        found = slice_request(sys._getframe(), specs)  # type: ignore[arg-type]
        assert found.formula is None
        assert found.stopped
