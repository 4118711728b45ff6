"""`wstrace audit` against a table that people made by reading these releases."""

from __future__ import annotations

import ast
import gc
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from tests.matrix.conftest import chosen_versions
from tests.matrix.wheels import python_files
from tools.audit_truth import Compared, compared, serving, versions
from wstrace.audit.deployment import deployment
from wstrace.audit.prediction import predict
from wstrace.audit.suggestion import suggest
from wstrace.audit.whole import Audit, Reading, audit, reading
from wstrace.report.audited import as_json

pytestmark = pytest.mark.matrix
READ = [v for v in versions() if v in chosen_versions()]


def share(right: Iterable[bool]) -> float:
    all_of_them = list(right)
    return sum(all_of_them) / max(1, len(all_of_them))


@cache
def read(version: str) -> Reading:
    return reading(python_files(version) / "vllm", version)


@cache
def audited(version: str) -> Audit:
    return read(version).audit()


def rows(version: str) -> list[Compared]:
    """The table's rows beside the audit."""
    return compared(version, audited(version))


def test_the_table_is_held_against_several_releases() -> None:
    assert len(READ) >= 3


@pytest.mark.parametrize("version", READ)
def test_every_request_of_the_table_is_found(version: str) -> None:
    missing = [c.row for c in rows(version) if c.site is None]
    assert missing == []


def test_roles_and_matches_agree_with_the_table() -> None:
    found = [c for version in READ for c in rows(version)]
    assert share(c.role_right for c in found) >= 0.97
    assert share(c.match_right for c in found) >= 0.9
    assert share(c.match_right for c in serving(found)) >= 0.85


def test_what_crashed_in_0_21_has_no_reservation() -> None:
    unreserved = {s.enclosing for s in audited("0.21.0").serving if s.match == "none"}
    assert unreserved >= {
        "FlashAttentionImpl._forward_with_dcp",
        "TurboQuantAttentionImpl._continuation_prefill",
        "TrtllmRaggedPrefillBackend._get_workspace_buffer",
        "FlashInferPrefillBackend.prepare_metadata",
    }


def test_turboquant_of_0_26_is_reserved_with_chunked_prefill_only() -> None:
    (site,) = [
        s for s in audited("0.26.0").sites if s.enclosing.endswith("._continuation_prefill")
    ]
    assert site.match == "partial"
    assert "enable_chunked_prefill" in site.condition


DSV4 = "vllm/models/deepseek_v4/nvidia/flashmla.py"


def test_deepseek_v4_of_0_22_is_full_and_none_without_its_reservation(tmp_path: Path) -> None:
    released = audited("0.22.1")
    (site,) = [s for s in released.serving if s.file == DSV4]
    (reserved,) = [s for s in released.sites if s.file == DSV4 and s.role == "reservation"]
    assert (site.match, site.matched_by) == ("full", (reserved.at,))
    shutil.copytree(python_files("0.22.1") / "vllm", tmp_path / "vllm")
    file = tmp_path / DSV4
    lines = file.read_text().splitlines(keepends=True)
    call = next(i for i in range(reserved.line - 1, 0, -1) if "get_simul" in lines[i])
    file.write_text("".join([*lines[:call], *lines[call + 3 :]]))  # the call is three lines
    (site,) = [s for s in audit(tmp_path / "vllm", "0.22.1").serving if s.file == DSV4]
    assert site.match == "none"


QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "hidden_size": 2048,
}
H100 = (
    "vllm serve q3 --kv-cache-dtype turboquant_4bit_nc --max-model-len 32768"
    " --max-num-batched-tokens 4096 --max-num-seqs 8"
)


def test_the_h100_run_of_0_21_is_predicted_to_the_byte(tmp_path: Path) -> None:
    """Its arena was locked at 2,146,816 bytes; 67,108,864 reserved was just enough."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(QWEN3))
    found = predict(read("0.21.0"), deployment(H100, config))
    assert (found.least, found.most) == (2_146_816, 2_146_816)
    (escaping,) = found.escapes
    assert escaping.site.enclosing == "TurboQuantAttentionImpl._continuation_prefill"
    assert escaping.needed.bytes == 67_108_864
    assert "block_size 16, as vLLM sets it for TurboQuantAttentionBackend" in escaping.needed.by
    assert not any(p.outcome == "may escape" for p in found.sites)


def parsing(root: Path) -> float:
    """CPU seconds that it takes this machine to parse a release, by every eighth file."""
    files = sorted((root / "vllm").rglob("*.py"))[::8]
    gc.disable()  # as the audit does while it reads
    before = time.process_time()
    for file in files:
        ast.parse(file.read_text())
    gc.enable()
    return 8 * (time.process_time() - before)


def test_an_audit_of_the_newest_release_is_quick_and_small() -> None:
    root = python_files("0.33.0")
    code = (
        "import re, resource, sys; from wstrace.cli.app import app, register_commands;"
        "register_commands();"
        "app(['audit', '--vllm', sys.argv[1], '--format', 'json'], standalone_mode=False);"
        "used = resource.getrusage(resource.RUSAGE_SELF);"
        # ru_maxrss would be the larger of this process and of the one that forked it
        "peak = re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1];"
        "print(used.ru_utime + used.ru_stime, peak, file=sys.stderr)"
    )
    here = as_json(audited("0.33.0"))
    done = subprocess.run(
        [sys.executable, "-c", code, str(root)], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["sites"] == json.loads(here)["sites"]  # other hashes, same
    seconds, kib = done.stderr.split()[-2:]
    assert float(seconds) < 5 * parsing(root)
    assert int(kib) < 1_000_000


def patched(version: str, wanted: str, into: Path) -> Path:
    """A copy of a release with the suggested patch, as git applies it."""
    shutil.copytree(python_files(version) / "vllm", into / "vllm")
    made = suggest(reading(into / "vllm", version), wanted)
    command = ["git", "apply", "-"]
    subprocess.run(command, input=made.patch, text=True, cwd=into, check=True)
    return into


def continued(folder: Path, chunked: bool) -> dict[str, str]:
    """What the release's own manager says to each continuation, prefix caching on."""
    command = [
        sys.executable,
        "-m",
        "tests.matrix.suggested",
        str(folder),
        str(int(chunked)),
        "1",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    refused: dict[str, str] = json.loads(done.stdout.splitlines()[-1])["refused"]
    return refused


@pytest.mark.parametrize(
    ("version", "chunked"),
    [("0.21.0", True), pytest.param("0.26.0", False, marks=pytest.mark.slow)],
)
def test_the_patched_release_no_longer_refuses_the_same_requests(
    version: str, chunked: bool, tmp_path: Path
) -> None:
    """Its own constructor, its own request, its own manager, locked: before and after."""
    before = continued(python_files(version), chunked)
    assert "locked" in before["16383"]
    folder = patched(version, "_continuation_prefill", tmp_path)
    after = continued(folder, chunked)
    assert after == dict.fromkeys(("992", "8992", "16383"), "")
    (site,) = [
        s
        for s in audit(folder / "vllm", version).serving
        if s.enclosing.endswith("._continuation_prefill")
    ]
    assert site.match == "full"


@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param("FlashAttentionImpl._forward_with_dcp", marks=pytest.mark.slow),
        "FlashInferPrefillBackend.prepare_metadata",
    ],
)
def test_other_suggestions_for_0_21_turn_the_match_to_full(wanted: str, tmp_path: Path) -> None:
    folder = patched("0.21.0", wanted, tmp_path)
    found = [s for s in audit(folder / "vllm", "0.21.0").serving if s.enclosing == wanted]
    assert {s.match for s in found} == {"full"}
