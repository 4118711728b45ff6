"""A size held against each release's formula, and advice by the release advised."""

from __future__ import annotations

import pytest

from tests.unit.triage.generator import bound_of, log_of, read
from wstrace.bounds.by_rule import rule_bound
from wstrace.findings.finding import Finding
from wstrace.known_sites.known import matches
from wstrace.triage.diagnose.numbers import Given

KPOOL = (
    "'sparse_attn_indexer_kpool.py:284:sparse_attn_indexer_kpool': 0.00 MB -> {} MB (ubatch 0)"
)
MOE = (
    "Workspace is locked but allocation from 'modular_kernel.py:1095:_allocate_buffers' "
    "requires {:.2f} MB, current size is 1.02 MB. Workspace growth is not allowed after "
    "locking."
)
NUMBERS = {"max_model_len": 1_000_000, "index_kpool": 4, "index_head_dim": 128}
WHOLE = 40_000_000 * 132 + 1_048_576
QUARTER = 10_000_000 * 132 + 1_048_576
NEWEST = 2 * 8 * 250_000 * 132 + 1_048_576
ENGINE = (
    "INFO 09-01 10:00:00 [core.py:1] Initializing a V1 LLM engine (v{}) with config: model=1"
)


def _kpool(
    size: str, version: str = "", head: str = "Resized workspace from "
) -> list[Finding]:
    said = ENGINE.format(version) if version else "no version"
    return read(f"{said}\n{head}{KPOOL.format(size)}", Given(NUMBERS)).findings


@pytest.mark.parametrize("head", ["Resized workspace from ", ""])
def test_the_size_tells_the_release(head: str) -> None:
    (finding,) = _kpool("5036.40", head=head)
    log = log_of(finding)
    assert finding.serving_bytes == bound_of(finding).bytes == WHOLE == 5_281_048_576
    assert log.required_exact
    assert log.fits == (("0.31.0", "0.32.0"),)
    assert "in this version" not in log.why
    assert "what vLLM 0.31.0 up to, not including, 0.32.0 asks for" in " ".join(log.evidence)


def test_the_size_fixes_the_width_that_the_text_lacks() -> None:
    """40,000,000 rows of 132 bytes; of 10,000,000 they would be of 528, which no key has."""
    text = f"{KPOOL.format('5036.40')}, max_model_len 1000000, kpool 4"
    (finding,) = read(text).findings
    assert log_of(finding).fits == (("0.31.0", "0.32.0"),)
    assert (bound_of(finding).bytes, bound_of(finding).grade) == (WHOLE, "fitted")
    assert "index_head_dim = 128: fixed by 5036.40 MB" in bound_of(finding).assumed
    assert f"{QUARTER:,} bytes" in log_of(finding).commands[0]


def test_what_cannot_be_told_excludes_no_release() -> None:
    """Without the pool's size the newer formulas may make it too."""
    (finding,) = read(f"{KPOOL.format('5036.40')}, max_model_len 1000000").findings
    assert log_of(finding).fits == ()


def test_an_upgrade_is_judged_by_its_own_formula() -> None:
    (finding,) = _kpool("5036.40")
    upgrade = log_of(finding).commands[0]
    assert upgrade.startswith("pip install 'vllm>=0.32.0'")
    assert f"{QUARTER:,} bytes" in upgrade
    assert f"{NEWEST:,} bytes" in upgrade


@pytest.mark.parametrize("version", ["0.32.0", "0.33.0"])
def test_a_version_that_the_size_contradicts(version: str) -> None:
    """The size shows another release's formula: nothing is proved for the text's own."""
    (finding,) = _kpool("5036.40", version)
    bound = bound_of(finding)
    assert (bound.bytes, bound.grade) == (WHOLE, "fitted")
    assert f"it is not that of {version}" in " ".join(bound.assumed)
    assert f"asks for, not {version}" in " ".join(log_of(finding).evidence)


def test_a_version_that_the_size_confirms_is_proved() -> None:
    (finding,) = _kpool("5036.40", "0.31.0")
    assert (bound_of(finding).bytes, bound_of(finding).grade) == (WHOLE, "proved")


@pytest.mark.parametrize("size", [QUARTER, NEWEST])
def test_a_size_of_a_fixed_release_is_not_too_much(size: int) -> None:
    assert _kpool(f"{size / 2**20:.2f}") == []


CONTINUATION = {"num_kv_heads": 8, "head_size": 128, "block_size": 16, "max_model_len": 16_384}
DECODE = {"num_attention_heads": 16, "head_size": 128, "max_num_seqs": 8}


@pytest.mark.parametrize(
    ("numbers", "asked", "worst", "rule"),
    [
        (CONTINUATION, "64.00", 2 * 8 * 16_384 * 128 * 2, "turboquant.reservation"),
        (DECODE, "2.05", 2_146_816, "turboquant.reservation_decode"),
    ],
)
def test_the_builders_own_reservation(
    numbers: dict[str, int], asked: str, worst: int, rule: str
) -> None:
    """The second is of a run on an H100: 8 requests, 16 heads of 128, 32 splits."""
    head = "(EngineCore pid=9) INFO 09-01 10:00:00 [workspace.py:190] "
    text = (
        f"{head}Available KV cache memory: 38.58 GiB\n"
        f"{head}Resized workspace from 'turboquant_attn.py:224:_reserve_workspace': "
        f"0.00 MB -> {asked} MB (ubatch 0)"
    )
    (finding,) = read(text, Given(numbers)).findings
    log = log_of(finding)
    assert (finding.code, log.rule and log.rule.id) == ("WS201", rule)
    assert finding.serving_bytes == bound_of(finding).bytes == worst
    assert "after the KV cache size was decided" in log.why


def test_of_alternatives_the_one_whose_worst_case_was_asked_for() -> None:
    """A free number of rows makes nearly every size of any experts; a worst case is only one's
    to its last digit."""
    numbers = {
        "max_num_batched_tokens": 8192, "top_k": 8, "moe_intermediate_size": 1536,
        "hidden_size": 4096, "moe_max_num_tokens": 1024, "num_local_experts": 16,
        "num_dispatchers": 2,
    }  # fmt: skip
    rules = matches("modular_kernel.py", "_allocate_buffers", "0.30.0")
    worst = {r.id: rule_bound(r, numbers).bytes for r in rules}
    for rule in rules:
        size = worst[rule.id]
        if size is None or list(worst.values()).count(size) > 1:
            continue
        text = ENGINE.format("0.30.0") + "\n" + MOE.format(size / 2**20)
        (finding,) = read(text, Given(numbers)).findings
        found = log_of(finding).rule
        assert found is not None
        assert f"{(worst[found.id] or 0) / 2**20:.2f}" == f"{size / 2**20:.2f}"
