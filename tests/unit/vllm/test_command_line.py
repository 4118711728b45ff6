"""The words of a server's command in all their spellings.

What vLLM makes of them was read in its FlexibleArgumentParser (0.13.0 to 0.33.0), and its own
parser is asked where it is installed.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from wstrace.cli.fixing.target import target_of
from wstrace.cli.recorded import begin
from wstrace.trace.run_file import read_run
from wstrace.vllm.command_line import (
    Engines,
    config_words,
    engines,
    option,
    serves,
    switch,
    with_config,
    words_of,
)

YAML = """
model: m
port: 8123
data_parallel_size: 4
data-parallel-size-local: 2
api-key: [secret, other]
trust-remote-code: true
enable-prefix-caching: false
middleware: []
compilation-config: {level: 3}
host: "::1"
"""
WORDS = [
    *("--model", "m", "--port", "8123", "--data_parallel_size", "4"),
    *("--data-parallel-size-local", "2", "--api-key", "secret", "other"),
    *("--trust-remote-code", "--no-enable-prefix-caching"),
    *("--compilation-config", '{"level": 3}', "--host", "::1"),
]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "server.yaml"
    path.write_text(YAML)
    return path


@pytest.mark.parametrize(
    "words",
    [
        ["--port", "1", "--port", "81"],
        ["--port=81"],
        ["--port=80", "--port=81"],
        ["bash", "-c", "vllm serve m --port 81"],
        ["/bin/sh", "-lc", "exec vllm serve m --port=81"],
        ["bash", "-e", "-c", "vllm serve m --port '81'"],
    ],
)
def test_the_last_value_of_an_option_counts_however_it_is_written(words: list[str]) -> None:
    assert option(words_of(words), "--port") == "81"


def test_what_is_no_option_of_that_name_is_left() -> None:
    words = ["--port-range", "1", "-p", "2", "port", "3", "--sport=4"]
    assert option(words, "--port") is None
    assert option(["-dpl2"], "-dp") is None
    assert words_of(["python", "-c", "print(1)"]) == ["python", "-c", "print(1)"]
    assert words_of(["bash", "run.sh", "-c", "a b"]) == ["bash", "run.sh", "-c", "a b"]
    assert words_of(["sh", "-c", "it's"]) == ["sh", "-c", "it's"]


@pytest.mark.parametrize(
    ("words", "on"),
    [
        (["--x-y"], True),
        (["--x_y"], True),
        (["-x"], True),
        (["--x-y", "--no-x-y"], False),
        (["--no-x_y", "--x-y"], True),
        ([], False),
    ],
)
def test_a_switch_is_on_until_it_is_off(words: list[str], on: bool) -> None:
    assert switch(words, "--x-y", "-x") is on


def test_a_config_file_gives_the_words_that_vllm_makes_of_it(config: Path) -> None:
    assert config_words(["vllm", "serve", "--config", str(config)]) == WORDS
    assert config_words(["bash", "-c", f"vllm serve --config {config}"]) == WORDS


@pytest.mark.parametrize("text", ["", "[1, 2]", "a: [", "- x", "42", "a: b\n\0"])
def test_a_config_file_that_is_none_gives_nothing(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    assert config_words(["serve", "--config", str(path)]) == []


def test_what_vllm_does_not_read_is_not_read(config: Path, tmp_path: Path) -> None:
    assert config_words(["serve", f"--config={config}"]) == []
    assert config_words(["serve", "--config"]) == []
    assert config_words(["serve", "--config", str(tmp_path / "gone.yaml")]) == []
    assert config_words(["serve", "--config", str(tmp_path)]) == []
    os.mkfifo(tmp_path / "pipe.yaml")  # opening one waits for ever
    assert config_words(["serve", "--config", str(tmp_path / "pipe.yaml")]) == []
    other = config.rename(tmp_path / "server.json")
    assert config_words(["serve", "--config", str(other)]) == []


def test_the_commands_own_words_count_before_those_of_its_config(config: Path) -> None:
    command = ["vllm", "serve", "--config", str(config), "-dp", "8"]
    words = with_config(command, config_words(command))
    assert engines(words) == Engines(2, 8)


def test_fix_asks_where_the_config_says(config: Path) -> None:
    target = target_of(["vllm", "serve", "--config", str(config)], None)
    assert (target.url, target.key) == ("http://[::1]:8123", "secret")
    told = target_of(["vllm", "serve", "--config", str(config), "--port", "1"], None)
    assert told.url == "http://[::1]:1"


def test_run_json_keeps_the_config_without_its_secrets(config: Path, tmp_path: Path) -> None:
    folder = tmp_path / "t"
    folder.mkdir()
    begin(folder, "r", ["vllm", "serve", "--config", str(config)], "raise", None)
    config.unlink()
    kept = read_run(folder / "run.json")
    assert kept is not None
    assert engines(kept.words) == Engines(2, 4)
    assert "secret" not in kept.config
    assert "other" not in kept.config


@pytest.mark.parametrize(
    ("words", "here", "everywhere"),
    [
        ("", 1, 1),
        ("-dp 4", 4, 4),
        ("-dp4", 4, 4),
        ("--data_parallel_size=4", 4, 4),
        ("-dp 4 -dpl 2", 2, 4),
        ("-dp 4 --data-parallel-size-local 2 --data-parallel-start-rank 2", 2, 4),
        ("-dp 2 -dpl 4", 2, 2),
        ("-dp 4 -dpn 3", 1, 4),
        ("-dp 4 --data-parallel-rank=0", 1, 4),
        ("-dp 4 -dpe", 1, 4),
        ("-dp 4 -dpb ray -dpl 1", 4, 4),
        ("-dp 4 --nnodes 2", 2, 4),
        ("-dp 4 -n 2 -dpl 1", 1, 4),
        ("-dp x", 1, 1),
        ("-dp 999999999999", 1, 1),
    ],
)
def test_the_engines_that_a_command_starts(words: str, here: int, everywhere: int) -> None:
    assert engines(words.split()) == Engines(here, everywhere)


@pytest.mark.parametrize(
    ("command", "server"),
    [
        ("vllm serve m", True),
        ("python -m vllm.entrypoints.openai.api_server --model m", True),
        ("python -mvllm.entrypoints.openai.api_server", True),
        ("python /opt/vllm/entrypoints/openai/api_server.py", True),
        ("env A=1 vllm serve m", True),
        ("vllm bench serve m", False),
        ("python ask.py", False),
        ("vllm --version", False),
    ],
)
def test_which_command_is_a_server(command: str, server: bool) -> None:
    assert serves(command.split()) is server
    assert serves(words_of(["bash", "-c", command])) is server


@pytest.mark.skipif(find_spec("vllm") is None, reason="asks vLLM's own parser")
def test_vllms_own_parser_reads_the_same(config: Path) -> None:
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    parser.add_argument("--enable-prefix-caching", "--no-enable-prefix-caching")
    assert parser.load_config_file(str(config)) == WORDS
