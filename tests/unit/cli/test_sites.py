"""`wstrace sites` as a person and as a script see it."""

from __future__ import annotations

import json

from tests.commands import wstrace
from wstrace.known_sites.known import known_sites


def run(*argv: str) -> str:
    done = wstrace("sites", *argv)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_json_lists_every_site_with_what_it_is() -> None:
    answer = json.loads(run("--format", "json"))
    assert answer["version"] == 1
    assert [site["id"] for site in answer["sites"]] == [site.id for site in known_sites()]
    site = next(s for s in answer["sites"] if s["id"] == "turboquant.continuation_prefill")
    assert site["files"] == ["vllm/v1/attention/backends/turboquant_attn.py"]
    assert site["functions"] == ["TurboQuantAttentionImpl._continuation_prefill"]
    assert site["versions"][0]["since"] == "0.21.0"
    assert site["names"].keys() == {"block_size", "head_size", "max_model_len", "num_kv_heads"}
    assert "round_up" in site["formula"]
    assert all(link.startswith("https://github.com/") for link in site["links"])


def test_piped_text_is_one_plain_line_a_site() -> None:
    lines = run().splitlines()
    assert len(lines) == len(known_sites())
    assert lines[0].split("\t")[0] == known_sites()[0].id
