"""Numbers that a log lacks, deduced from a printed size and the scheduler dump: as sets."""

from __future__ import annotations

import pytest

from tests.unit.triage.generator import Failure, bound_of, log_lines, log_of, read
from tests.unit.triage.test_steps import DUMP
from wstrace.errors import WstraceError
from wstrace.findings.finding import Finding
from wstrace.triage.diagnose.numbers import Given

START_UP = (
    "Available KV cache memory: 5.31 GiB",
    "non-default args: {'max_model_len': 131072}",
)


def _found(given: dict[str, int], computed: int = 4128, asked: float = 8.06) -> Finding:
    """By hand: 2 buffers * 512 elements * 4128 tokens * 2 bytes are 8,454,144, or 8.06 MB."""
    lines = [*START_UP, DUMP.format(computed=computed)]
    lines += Failure(required=asked, current=0.76).traceback()
    text = "\n".join(log_lines(lines, "EngineCore pid=3"))
    (finding,) = read(text, Given(given)).findings
    return finding


@pytest.mark.parametrize(
    ("given", "worst"),
    [
        ({}, 64 * 2064 * 512 * 4),
        ({"block_size": 16}, 131_072 * 512 * 4),
        ({"head_size": 128}, 64 * 2064 * 512 * 4),
        ({"num_kv_heads": 4}, 64 * 2064 * 512 * 4),
        ({"num_kv_heads": 4, "head_size": 128}, 64 * 2064 * 512 * 4),
        ({"num_kv_heads": 4, "head_size": 128, "block_size": 4128}, 32 * 4128 * 512 * 4),
    ],
)
def test_the_largest_of_what_fits(given: dict[str, int], worst: int) -> None:
    finding = _found(given)
    assert bound_of(finding).bytes == worst
    assert finding.serving_bytes == 8_454_144
    assert log_of(finding).required_exact


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"block_size": 3072}, "fit only block_size 16, 32, 48, 96, 688, 1376, 2064 or 4128"),
        ({"num_kv_heads": 4, "head_size": 256}, r"head_size \* num_kv_heads = 512"),
        ({"head_size": 192}, r"head_size \* num_kv_heads = 512"),
    ],
)
def test_a_given_number_that_no_way_fits_is_an_error(given: dict[str, int], told: str) -> None:
    with pytest.raises(WstraceError, match=told) as refused:
        _found(given)
    assert str(refused.value).startswith(f"--set {next(iter(sorted(given)))}=")
    assert "failing server's own numbers" in str(refused.value.hint)


def test_a_dump_of_another_step_contradicts_nobody() -> None:
    """9000 tokens do not make 8.06 MB with any head: the dump is not of this failure."""
    finding = _found({"num_kv_heads": 4, "head_size": 128, "block_size": 16}, computed=9000)
    assert bound_of(finding).contradiction


def test_blocks_with_products_of_their_own_are_a_set() -> None:
    """200 tokens are 208 in blocks of 16 and 256 in blocks of 256. 0.13 MB are 160 elements of
    the one and 128 of the other; 160 * 131,072 tokens need more."""
    finding = _found({}, computed=200, asked=0.13)
    told = "head_size * num_kv_heads = 128 or 160: fixed by 0.13 MB and the scheduler dump"
    assert told in bound_of(finding).assumed
    assert bound_of(finding).bytes == 131_072 * 160 * 4
    assert not log_of(finding).required_exact
