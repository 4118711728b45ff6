"""`python -m tests.matrix.child NAMES SOURCES OUT [SOURCES OUT...]`: run scenarios.

Each pair of folders runs in a process of its own, against its own vLLM. Writes
OUT/SCENARIO.json (facts, or the traceback) and the traces below OUT/SCENARIO/. NAMES are
joined by commas; "" stands for all.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path

from tests.matrix.harness import FUTURE
from tests.matrix.stand_ins import load_vllm
from tests.matrix.wheels import changes


def main(names: list[str], pairs: list[tuple[Path, Path]]) -> int:
    """Run these scenarios against each of the sources; a fork shares what torch costs."""
    if len(pairs) == 1:
        run_all(names, *pairs[0])
        return 0
    failed = 0
    for pair in pairs:
        child = os.fork()
        if not child:
            os._exit(_status(names, *pair))
        failed += bool(os.waitpid(child, 0)[1])
    return failed


def _status(names: list[str], sources: Path, out: Path) -> int:
    try:
        run_all(names, sources, out)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        return 1
    return 0


def run_all(names: list[str], sources: Path, out: Path) -> None:
    """Run these scenarios (default: all) in this process, one after the other."""
    load_vllm(sources)
    FUTURE.update(changes(sources))
    for file in sorted(Path(__file__).parent.glob("scenes_*.py")):
        import_module(f"tests.matrix.{file.stem}")
    from tests.matrix.kit import SCENARIOS

    for name in names or SCENARIOS:
        gc.freeze()  # vLLM collects garbage often; what torch and Dynamo loaded makes that slow
        run, folder = SCENARIOS[name], out / name
        folder.mkdir(parents=True)
        try:
            facts = run(folder)
        except Exception:
            facts = {"raised": traceback.format_exc()}
        (out / f"{name}.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    folders = [Path(argument) for argument in sys.argv[2:]]
    wanted = [name for name in sys.argv[1].split(",") if name]
    sys.exit(main(wanted, list(zip(folders[::2], folders[1::2], strict=True))))
