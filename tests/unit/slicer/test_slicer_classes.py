"""What classes decide: the parent's method, attributes set once, values that may be None."""

from __future__ import annotations

from tests.unit.slicer.fakes import Worker, tensor
from tests.unit.slicer.test_slicer_closed import bytes_at, closed

PARENTS = """
class Experts:
    def shape(self, rows):
        return (rows, self.width)

class Triton(Experts):
    def __init__(self, width):
        self.width = width

    def shape(self, rows):
        return (rows, 2 * self.width)

class Fused(Triton):
    def shape(self, rows):
        more, wide = super().shape(rows)
        return (more + 8, wide)

class Tuned(Fused):
    def shape(self, rows):
        return super().shape(rows)

def ask(experts, meta):
    shape = experts.shape(meta.num_actual_tokens)
    return manager.get_simultaneous((shape, torch.float32))
"""


def test_super_is_the_class_after_the_one_that_asks(worker: Worker) -> None:
    module = worker.load(PARENTS)
    module.ask(module.Tuned(64), worker.metadata(num_actual_tokens=8))
    sliced = worker.manager.last
    closed(sliced)
    assert bytes_at(sliced, num_padded_tokens=100) == -(-108 * 128 * 4 // 256) * 256


ONCE = """
class Model:
    def __init__(self, layers):
        self.layers = layers

    def ask(self, meta):
        if not hasattr(self, "_count"):
            self._prepare()
        {late}
        return self.request(meta)

    def _prepare(self):
        self._count = self.layers

    def request(self, meta):
        rows = self._count * meta.num_actual_tokens
        return manager.get_simultaneous(((rows,), torch.float32))
"""


def test_an_attribute_that_is_set_once_is_a_constant(worker: Worker) -> None:
    model = worker.load(ONCE.format(late="pass")).Model(5)
    model.ask(worker.metadata(num_actual_tokens=64))
    assert closed(worker.manager.last).keys() == {"count", "num_padded_tokens"}


def test_an_attribute_that_is_set_again_is_not(worker: Worker) -> None:
    model = worker.load(ONCE.format(late="self._prepare()")).Model(5)
    model.ask(worker.metadata(num_actual_tokens=64))
    assert "_count is changed in Model._prepare" in (worker.manager.last.stopped or "")


def test_what_is_indexed_is_not_none(worker: Worker) -> None:
    source = """
class Config:
    def __init__(self, block):
        self.block = block

    @property
    def shape(self):
        if self.block > 0:
            return [self.block, 128]
        return None

def ask(config, meta):
    rows = meta.num_actual_tokens * config.shape[0]
    return manager.get_simultaneous(((rows,), torch.float32))
"""
    module = worker.load(source)
    module.ask(module.Config(64), worker.metadata(num_actual_tokens=4))
    sliced = worker.manager.last
    closed(sliced)
    assert bytes_at(sliced, num_padded_tokens=10) == 10 * 64 * 4


def test_an_arm_that_raises_is_no_arm(worker: Worker) -> None:
    source = """
def packed(size):
    if size == 2:
        return 2
    if size == 4:
        return 1
    raise ValueError(size)

def ask(meta):
    rows = meta.num_actual_tokens * packed(meta.num_decodes)
    return manager.get_simultaneous(((rows,), torch.float32))
"""
    worker.load(source).ask(worker.metadata(num_actual_tokens=64, num_decodes=4))
    assert len(worker.manager.last.arms) == 2


SCALED = """
class Layer:
    def __init__(self, scale):
        self.scale = scale

    def ask(self, meta):
        q = meta.slot_mapping * self.scale
        return manager.get_simultaneous(((q.shape[0], 64), torch.float32))
"""


def test_a_tensor_of_one_element_enlarges_nothing(worker: Worker) -> None:
    meta = worker.metadata(slot_mapping=tensor(8))
    worker.load(SCALED).Layer(tensor(1)).ask(meta)
    closed(worker.manager.last)
    assert bytes_at(worker.manager.last, num_padded_tokens=10) == 10 * 64 * 4


def test_a_larger_tensor_may_enlarge(worker: Worker) -> None:
    meta = worker.metadata(slot_mapping=tensor(8))
    worker.load(SCALED).Layer(tensor(2, 8)).ask(meta)
    assert worker.manager.last.stopped
