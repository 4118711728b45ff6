"""The pytest plugin with real engines: LLM(...) in this process, and spawned."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from wstrace.testbed.engine import engine_env

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.engine

# One engine a test; a prompt of 400 tokens in chunks of 256 continues after 256.
SUITE = """
import os
import pytest
from wstrace.testbed.engine import prompt_of

def generate(tokens):
    from vllm import LLM, SamplingParams

    llm = LLM(
        os.environ["TINY_MODEL"],
        load_format="dummy",
        max_model_len=1024,
        max_num_batched_tokens=256,
        max_num_seqs=4,
        compilation_config={"mode": 2, "backend": "eager"},
    )
    prompt = {"prompt_token_ids": prompt_of(tokens)}
    llm.generate(prompt, SamplingParams(max_tokens=2, ignore_eos=True), use_tqdm=False)

@pytest.mark.wstrace(max_arena="64MiB")
def test_short():
    generate(100)

@pytest.mark.wstrace(on_growth="grow")
def test_long():
    generate(400)
"""
# Two buffers of 4 KV heads, 256 computed tokens and 64 float16.
REQUIRED = 2 * 4 * 256 * 64 * 2


@pytest.mark.parametrize(
    ("multiprocessing", "names"),
    [("0", ("test_long",)), ("1", ("test_short", "test_long"))],
    ids=["in-process", "spawned"],
)
def test_an_engine_is_judged(
    multiprocessing: str, names: tuple[str, ...], engine: Path, model: Path, tmp_path: Path
) -> None:
    """A short prompt passes; a long one escapes, survives by grow, and fails the test."""
    (tmp_path / "test_llm.py").write_text(SUITE)
    done = subprocess.run(
        [
            *(str(engine / "bin" / "python"), "-m", "pytest", "-p", "no:cacheprovider", "-rA"),
            *("--wstrace=traces", "--junit-xml=junit.xml", "test_llm.py"),
            *("-k", " or ".join(names)),
        ],
        cwd=tmp_path,
        env=engine_env(
            "continuation",
            prefix=engine,
            TINY_MODEL=str(model),
            VLLM_ENABLE_V1_MULTIPROCESSING=multiprocessing,
            VLLM_WORKER_MULTIPROC_METHOD="spawn",
        ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    clean = len(names) - 1
    assert "1 failed" + ", 1 passed" * clean in done.stdout
    if clean:
        assert _properties(tmp_path, "test_short")["wstrace.verdict"] == "clean"
    long = _properties(tmp_path, "test_long")
    assert long["wstrace.verdict"] == "findings"
    assert long["wstrace.arena_bytes"] == str(REQUIRED)
    assert long["wstrace.findings"].endswith("Continuation._continuation_prefill")
    assert f"{len(names)} tests judged by wstrace, {clean} clean" in done.stdout


def _properties(folder: Path, name: str) -> dict[str, str]:
    root = ET.parse(folder / "junit.xml")
    (case,) = [c for c in root.iter("testcase") if c.get("name") == name]
    return {p.get("name", ""): p.get("value", "") for p in case.iter("property")}
