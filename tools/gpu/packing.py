"""Packing results: few, small files; long log lines are cut, nothing else is."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Final

LINE: Final = 1500
LOG_BYTES: Final = 400_000
CACHE_BYTES: Final = 16_000_000


def pack(folder: Path, target: Path) -> Path:
    """`folder` as a tar.gz; its logs are trimmed in place first."""
    for log in folder.rglob("*.log"):
        trim(log)
    partial = target.with_name(f".{target.name}")
    with tarfile.open(partial, "w:gz") as archive:
        archive.add(folder, arcname=folder.name)
    partial.replace(target)
    return target


def trim(log: Path) -> None:
    """Cut lines beyond `LINE` characters, and the middle of a log beyond `LOG_BYTES`."""
    text = log.read_text(errors="replace")
    lines = [
        line if len(line) <= LINE else line[:LINE] + " [cut]" for line in text.splitlines()
    ]
    short = "\n".join(lines) + "\n"
    if len(short) > LOG_BYTES:
        half = LOG_BYTES // 2
        short = short[:half] + "\n[the middle is cut]\n" + short[-half:]
    if short != text:
        log.write_text(short)


def pack_caches(caches: Path, target: Path) -> str:
    """The compile caches as tar.xz, so that a later machine starts warm; says what came of it.

    Left out beyond `CACHE_BYTES`.
    """
    partial = target.with_name(f".{target.name}")
    with tarfile.open(partial, "w:xz", preset=1) as archive:
        for name in ("triton", "vllm", "inductor"):
            if (caches / name).is_dir():
                archive.add(caches / name, arcname=name)
    size = partial.stat().st_size
    if size > CACHE_BYTES:
        partial.unlink()
        return (
            f"the compile caches are {size:,} bytes packed, more than {CACHE_BYTES:,}: left out"
        )
    partial.replace(target)
    return f"the compile caches are {size:,} bytes packed"


def unpack_caches(source: Path, caches: Path) -> None:
    """What `pack_caches` made, into `caches`.

    Triton's group files name the files of a kernel by their absolute paths, and a kernel
    whose files are not found is compiled again: they are written anew for this folder.
    """
    caches.mkdir(parents=True, exist_ok=True)
    with tarfile.open(source) as archive:
        archive.extractall(caches, filter="data")
    for group in (caches / "triton").glob("*/__grp__*.json"):
        kept = json.loads(group.read_text())
        kept["child_paths"] = {
            name: str(group.parent.resolve() / name) for name in kept["child_paths"]
        }
        group.write_text(json.dumps(kept))
