"""Gathered files held against the digests of their manifests, without their sources."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from wstrace.errors import WstraceError, one_line
from wstrace.fleet.found_files import kind_of, look, named_kind
from wstrace.gather.copies import MANIFEST, Manifest, read_manifest
from wstrace.gather.gathering import Tell


@dataclass
class Checked:
    """Files that are what was copied, and a line for each that is not."""

    sound: int = 0
    runs: int = 0
    wrong: list[str] = field(default_factory=list)


def check(folder: Path, tell: Tell) -> Checked:
    """Read every file of the runs in `folder`. WstraceError where nothing was gathered."""
    done = Checked()
    manifests = sorted(folder.glob(f"*/{MANIFEST}"))
    if not manifests:
        raise WstraceError(
            f"Nothing was gathered in {folder}.", "Give the folder that `wstrace gather` wrote."
        )
    for file in manifests:
        done.runs += 1
        _check_run(file.parent, read_manifest(file), done, tell)
    return done


def _check_run(folder: Path, manifest: Manifest, done: Checked, tell: Tell) -> None:
    wanted = {c.name: c for c in manifest.files.values() if c.kept}
    for name, copied in sorted(wanted.items()):
        file = folder / name
        found = look(str(file), kind_of(name) or named_kind(file))
        if not file.exists():
            done.wrong.append(f"{_shown(file)} is gone")
        elif found.digest == copied.digest:
            done.sound += 1
        else:
            now = found.wrong if not found.digest else f"it has {found.size:,} bytes"
            done.wrong.append(
                f"{_shown(file)} is not what was copied from {one_line(copied.source)} "
                f"({copied.size:,} bytes): {now}"
            )
        tell("Checking", done.sound + len(done.wrong), None)
    done.wrong += [f"{_shown(file)} is in no manifest" for file in _strange(folder, wanted)]


def _strange(folder: Path, known: Collection[str]) -> Iterator[Path]:
    for file in sorted(folder.iterdir()):
        if file.name not in known and kind_of(file.name) is not None:
            yield file


def _shown(file: Path) -> str:
    return one_line(f"{file.parent.name}/{file.name}")
