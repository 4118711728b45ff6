"""Copy the trace of one server of an unpacked result into sample_traces/, with neutral names.

    scripts/gpu publish RESULT/SERVER NAME

The host's name becomes `host`; folders of engine, models and Python are cut off. All else
stays as recorded. The reserve that the server was given, or that was made from its trace,
comes along as reserve.yaml.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Final, NoReturn

from tools import ROOT

SAMPLES: Final = ROOT / "sample_traces"
FOLDERS: Final = (
    # matches: '"/opt/engine/vllm/worker.py'
    (re.compile(r'(")/(?:[\w.+-]+/)*engine/(?=vllm/)'), r"\1"),
    # matches: '"/data/caches/models/tiny'
    (re.compile(r'(")/(?:[\w.+-]+/)*caches/(?=models/)'), r"\1"),
    # matches: '"/opt/torch/bin/python3"'
    (re.compile(r'(")/(?:[\w.+-]+/)*bin/(?=python3")'), r"\1"),
)
# matches: '"host":"node7"'
HOST: Final = re.compile(r'"host":"([^"]+)"')
# matches: 'wrote /tmp/trace'
LEFT: Final = re.compile(r'(?<![\w/.])/(?:opt|tmp|home|root|work|mnt)/[^"\s]*')
# matches: "h100-vllm-0.26.0"
NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*")


def neutral(text: str) -> str:
    """`text` without the folders of the machine that made it."""
    for pattern, instead in FOLDERS:
        text = pattern.sub(instead, text)
    left = LEFT.findall(text)
    if left:
        refuse(f"folders left: {', '.join(sorted(set(left)))}", "Add them to FOLDERS.")
    return text


def publish(server: Path, target: Path) -> None:
    """Write `target` anew from the trace of `server`; its reports are made afterwards.

    Everything is read and checked before the old folder goes.
    """
    traces = sorted((server / "trace").glob("*.wst.jsonl"))
    if not traces or not (server / "trace" / "run.json").is_file():
        refuse(f"{server} holds no trace.", "Give the folder of one server: RESULT/SERVER.")
    made = {"run.json": neutral((server / "trace" / "run.json").read_text())}
    for path in traces:
        text = path.read_text()
        host = HOST.search(text)
        if host is None:
            refuse(f"{path.name} names no host.", "Is it a trace of wstrace?")
        name = path.name.replace(f".{host[1]}.", ".host.", 1)
        made[name] = neutral(text.replace(host[0], '"host":"host"'))
    reserve = _reserve(server)
    if reserve is not None:
        made["reserve.yaml"] = neutral(reserve.read_text())
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name, text in made.items():
        (target / name).write_text(text)


def _reserve(server: Path) -> Path | None:
    """The reserve that the server was given, else the one made from its trace, if any."""
    try:
        command = json.loads((server / "command.json").read_text())
        given = (
            Path(command[command.index("--reserve") + 1]) if "--reserve" in command else None
        )
    except (OSError, ValueError, IndexError):
        refuse(f"{server}/command.json cannot be read.", "Unpack the result again.")
    made = server.parent / given.parent.name / given.name if given else server / "reserve.yaml"
    if given and not made.is_file():
        refuse(
            f"{made} is missing.", "The server was started with it: unpack the whole result."
        )
    return made if made.is_file() else None


def refuse(what: str, instead: str) -> NoReturn:
    """Two lines, exit code 2; nothing was written."""
    print(f"publish: {what}\n{instead}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        refuse(
            "usage: scripts/gpu publish RESULT/SERVER NAME",
            "Then: scripts/make-docs sample-reports",
        )
    if not NAME.fullmatch(sys.argv[2]):
        refuse(
            f"{sys.argv[2]!r} is no name for a sample.", "Letters, digits, dots and hyphens."
        )
    publish(Path(sys.argv[1]), SAMPLES / sys.argv[2])
