"""Fuzz what reads input of others, with atheris (coverage-guided).

    scripts/fuzz [TARGET...] [--seconds 600]

Each target runs in a process of its own, from its seeds on; an input that raises anything but
WstraceError, takes 20 s, or 2 GB, ends it and is kept in ./fuzz-findings. Exits 1 if one did.
"""

from __future__ import annotations

import argparse
import importlib
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tools.fuzz.mutate import KINDS, WORDS, damaged

FINDINGS: Final = Path("fuzz-findings")
SECONDS, MEGABYTES = 20, 2048
HEAVY: Final = ("numpy", "pandas", "torch", "rich")


def fuzz(name: str, seconds: int) -> None:
    """Never returns: libFuzzer ends the process."""
    atheris = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["wstrace"], exclude=HEAVY):
        from tools.fuzz.targets import TARGETS, attempt

    target = TARGETS[name]
    corpus = Path(tempfile.mkdtemp(prefix="wstrace-corpus-"))
    for number, seed in enumerate(target.seeds()):
        (corpus / str(number)).write_bytes(seed)

    def mutated(data: bytes, most: int, seed: int) -> bytes:
        """libFuzzer's own changes, and every other time those of a hostile hand."""
        if seed % 2:
            changed: bytes = atheris.Mutate(data, most)
            return changed
        chance = random.Random(seed)
        edits = [
            (chance.choice(KINDS), chance.randrange(most), chance.randrange(200), word)
            for word in chance.choices(WORDS, k=chance.randint(1, 4))
        ]
        return damaged(data, edits)[:most]

    FINDINGS.mkdir(exist_ok=True)
    limits = [f"-timeout={SECONDS}", f"-rss_limit_mb={MEGABYTES}", f"-max_len={target.most}"]
    kept = f"-artifact_prefix={FINDINGS}/{name}-"
    arguments = [sys.argv[0], f"-max_total_time={seconds}", *limits, kept, str(corpus)]
    atheris.Setup(arguments, lambda data: attempt(target, data), custom_mutator=mutated)
    atheris.Fuzz()


def main() -> int:
    from tools.fuzz.targets import TARGETS

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=int, default=600, help="For each target.")
    options = parser.parse_args()
    wrong = [name for name in options.targets if name not in TARGETS]
    if wrong:
        print(f"fuzz: no target {wrong[0]}.\nThere are: {' '.join(TARGETS)}", file=sys.stderr)
        return 2
    failed = []
    for name in options.targets or TARGETS:
        command = [sys.executable, "-m", "tools.fuzz.one", name, str(options.seconds)]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    told = (
        f"something was found in {', '.join(failed)}: {FINDINGS}" if failed else "nothing found"
    )
    print(f"fuzz: {told}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
