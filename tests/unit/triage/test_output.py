"""The three forms of the report, and what must never be in them."""

from __future__ import annotations

import json

import pytest

from tests.unit.triage.generator import Failure, log_lines, log_of, read
from wstrace.report.finding_json import triage_json
from wstrace.report.triage import render_markdown, render_text
from wstrace.triage.diagnose.numbers import Given
from wstrace.triage.redaction import redact
from wstrace.triage.report import Report, one_report

PRIVATE = {
    "key": "sk-abcdefgh12345678",
    "token": "hf_abcdefghij",
    "host": "gpu17.prod.corp",
    "address": "10.11.12.13",
    "request": "chatcmpl-8f1c2a33deadbeef",
    "prompt": "my medical history",
    "tokens": "15496, 11, 995, 318, 257, 1332, 286, 262, 2836",
    "home": "/home/alice",
}
LEAKY = [
    f"non-default args: {{'api_key': ['{PRIVATE['key']}'], 'hf_token': '{PRIVATE['token']}', "
    f"'model': '{PRIVATE['home']}/m', 'max_model_len': 4096, 'host': '{PRIVATE['host']}'}}",
    f"vllm serve {PRIVATE['home']}/m --api-key {PRIVATE['key']} --max-num-seqs 4",
    f"world_size=1 distributed_init_method=tcp://{PRIVATE['address']}:33643",
    f"SchedulerOutput(scheduled_new_reqs=[NewRequestData(req_id={PRIVATE['request']},"
    f"prompt_token_ids=[{PRIVATE['tokens']}],prompt='{PRIVATE['prompt']}',"
    f"num_computed_tokens=0)], num_scheduled_tokens={{{PRIVATE['request']}: 9}}, "
    "total_num_scheduled_tokens=9)",
]


def _report(*lines: str, given: Given | None = None) -> Report:
    return one_report([read("\n".join(lines), given)])


def _leaky() -> Report:
    failure = log_lines(Failure().traceback(f"{PRIVATE['home']}/venv/lib"), "EngineCore pid=1")
    lines = [f"{PRIVATE['host']} | {line}" for line in [*LEAKY, *failure]]
    return _report(*lines)


@pytest.mark.parametrize("form", ["text", "markdown", "json"])
def test_nothing_private_gets_out(form: str) -> None:
    report = _leaky()
    made = {
        "text": lambda: render_text(report),
        "markdown": lambda: render_markdown(report),
        "json": lambda: json.dumps(triage_json(report)),
    }[form]()
    assert "_continuation_prefill" in made
    for name, secret in PRIVATE.items():
        assert secret not in made, name


@pytest.mark.parametrize("name", PRIVATE)
def test_redaction(name: str) -> None:
    wrapped = {"tokens": "[{}]", "prompt": "prompt='{}'"}.get(name, "see {} there")
    assert PRIVATE[name] not in redact(wrapped.format(PRIVATE[name]))


@pytest.mark.parametrize(
    "harmless",
    ["vllm/v1/worker/workspace.py", "0.21.0", "https://github.com/vllm-project/vllm/pull/1",
     "turboquant_attn.py:_continuation_prefill", "(<class 'torch.Tensor'>, ('k', 0, 7))"],
)  # fmt: skip
def test_redaction_leaves_facts_alone(harmless: str) -> None:
    assert redact(harmless) == harmless


def test_text_fits_one_screen() -> None:
    lines = render_text(_report(*Failure().traceback())).splitlines()
    assert len(lines) <= 24
    prose = [line for line in lines if "wstrace " not in line and "http" not in line]
    assert max(len(line) for line in prose) <= 80


@pytest.mark.parametrize("ranks", [64])
def test_many_ranks_are_one_block(ranks: int) -> None:
    lines = [
        line
        for rank in range(ranks)
        for line in log_lines(Failure().traceback(), f"Worker_TP{rank} pid={rank}")
    ]
    made = render_text(_report(*lines))
    assert len(made.splitlines()) <= 26
    assert "1 finding" in made
    assert "and 56 more" in " ".join(made.split())


def test_text_says_what_an_expert_says() -> None:
    made = render_text(_report(*Failure().traceback()))
    for word in (
        "WS101", "16.00 MB", "1.02 MB", "--max-model-len", "--max-num-batched-tokens",
        "0.24.0", "num_kv_heads", "--set", "pull/44053" if "pull/44053" in made else "issues/",
    ):  # fmt: skip
        assert word in made


def test_an_unknown_site_gets_the_honest_answer() -> None:
    failure = Failure("brand_new_layer.py", 12, "forward", 30.0, 20.0)
    made = render_text(_report(*failure.traceback()))
    assert "not known" in made
    assert "wstrace run" in made
    finding = triage_json(_report(*failure.traceback()))["findings"][0]
    assert (finding["class"], finding["known_site"], finding["lever"]) == (
        "unknown",
        None,
        None,
    )
    assert finding["worst_case"]["bytes"] is None


def test_nothing_found_says_so() -> None:
    for render in (render_text, render_markdown):
        assert "No failure found" in render(_report("all is well"))


def test_json_types() -> None:
    given = Given(
        {"num_kv_heads": 4, "head_size": 256, "max_model_len": 8192, "block_size": 16}
    )
    report = _report(*log_lines(Failure().traceback(), "Worker_DP1_EP3 pid=4"), given=given)
    made = json.loads(json.dumps(triage_json(report)))
    assert (made["version"], made["skipped"]) == (1, 0)
    (finding,) = made["findings"]
    assert finding["rank"] == {"dp": 1, "tp": None, "pp": None, "ep": 3}
    assert finding["slot"] is None
    assert finding["layer"] is None
    assert finding["vllm_version"] is None
    assert finding["required_bytes"] == 16 * 2**20
    assert finding["required_exact"] is True
    assert finding["current_exact"] is False
    assert finding["source"] == {"path": "test.log", "line": 9}
    assert finding["worst_case"]["bytes"] == 2 * 4 * 8192 * 256 * 2
    assert finding["worst_case"]["needs"] == []
    assert set(finding["lever"]) == {"flag", "effect"}
    assert all(link.startswith("https://") for link in finding["links"])


def test_many_files_do_not_fill_the_screen() -> None:
    texts = [read(Failure().message, name=f"{number}.log") for number in range(9)]
    assert "0.log, 1.log, 2.log and 6 more: 1 finding" in render_text(one_report(texts))


def test_several_texts() -> None:
    one = read("--max-model-len 4096\n" + Failure().message, name="a.log")
    other = read("--max-model-len 9 --max-num-seqs 2\n" + Failure(line=9).message, name="b.log")
    report = one_report([one, other])
    assert [log_of(f).path for f in report.findings] == ["a.log", "b.log"]
    assert report.config == {"max_model_len": 4096, "max_num_seqs": 2}


def test_markdown_is_whole() -> None:
    made = render_markdown(_leaky())
    assert "- Asked for 16.00 MB, had 1.02 MB." in made
    assert "max_model_len: 4096" in made
    assert "vllm/v1/attention/backends/turboquant\\_attn.py" in made
