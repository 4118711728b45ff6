"""Batches of decodes with drafts: flattened, or padded to the longest."""

from __future__ import annotations

from tests.unit.slicer.fakes import Worker, tensor
from tests.unit.slicer.test_slicer_closed import bytes_at, closed
from wstrace.slicer.slicer import Sliced

INDEXER = """
def pack(x, lengths):
    rest = x.shape[1:]
    count = lengths.numel()
    longest = int(lengths.max().item())
    out = torch.Tensor(count, longest, 4)
    return out.reshape((count, longest) + rest)

def rows_of(q, meta, padded):
    lens = meta.decode_lens
    if padded:
        return lens.numel(), int(lens.max().item())
    flat = q[: meta.num_decode_tokens].reshape(lens.shape[0], -1, *q.shape[1:])
    return flat.shape[0], flat.shape[1]

def logits(q, meta, width, padded):
    batch, longest = rows_of(q, meta, padded)
    return manager.get_simultaneous(((batch * longest, 4096), torch.float32))

def dense(meta):
    rows = meta.decode_row_lens.shape[0]
    return manager.get_simultaneous(((rows, 128), torch.float32))
"""


def logits(worker: Worker, lens: list[int], padded: bool) -> Sliced:
    tokens = sum(lens)
    meta = worker.metadata(num_decode_tokens=tokens, decode_lens=tensor(values=lens))
    worker.load(INDEXER).logits(tensor(tokens, 8, 64), meta, 4096, padded)
    return worker.manager.last


def test_a_padded_batch_is_bounded_by_its_rows_not_by_its_tokens(worker: Worker) -> None:
    sliced = logits(worker, [1, 4, 1], padded=True)
    leaves = closed(sliced)
    assert leaves["num_decode_rows"].value == 12
    assert bytes_at(sliced, num_decode_rows=40) == 40 * 4096 * 4


def test_a_view_that_divides_the_tokens_gives_them_back(worker: Worker) -> None:
    sliced = logits(worker, [2, 2, 2], padded=False)
    assert bytes_at(sliced, num_decode_tokens=10) == 10 * 4096 * 4
    assert "//" not in (sliced.formula or "")


def test_rows_of_a_padded_table(worker: Worker) -> None:
    worker.load(INDEXER).dense(worker.metadata(decode_row_lens=tensor(12)))
    assert set(closed(worker.manager.last)) == {"num_decode_rows"}


def test_the_longest_of_one_batch_times_another_count_is_not_its_rows(worker: Worker) -> None:
    source = """
def ask(one, other):
    count, longest = other.decode_lens.numel(), int(one.decode_lens.max().item())
    return manager.get_simultaneous(((count * longest,), torch.float32))
"""
    one = worker.metadata(decode_lens=tensor(values=[1, 3]))
    other = worker.metadata(decode_lens=tensor(values=[1, 1, 1]))
    worker.load(source).ask(one, other)
    assert set(closed(worker.manager.last)) == {"num_decode_tokens", "query_len"}
