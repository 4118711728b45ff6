"""`python -m tests.matrix.child SOURCES OUT [NAME...]`: run scenarios against one vLLM.

Writes OUT/SCENARIO.json (facts, or the traceback) and the traces below OUT/SCENARIO/.
"""

from __future__ import annotations

import json
import sys
import traceback
from importlib import import_module
from pathlib import Path

from tests.matrix.harness import FUTURE
from tests.matrix.stand_ins import load_vllm
from tests.matrix.wheels import changes


def main(sources: Path, out: Path, *names: str) -> None:
    """Run these scenarios (default: all) in this process, one after the other."""
    load_vllm(sources)
    FUTURE.update(changes(sources))
    for file in sorted(Path(__file__).parent.glob("scenes_*.py")):
        import_module(f"tests.matrix.{file.stem}")
    from tests.matrix.kit import SCENARIOS

    for name in names or SCENARIOS:
        run, folder = SCENARIOS[name], out / name
        folder.mkdir(parents=True)
        try:
            facts = run(folder)
        except Exception:
            facts = {"raised": traceback.format_exc()}
        (out / f"{name}.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
