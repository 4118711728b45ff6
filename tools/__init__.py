"""What the project is made with: its generated pages, its benchmarks, its runs on GPUs.

Not part of the wheel. `scripts/` has the few commands that a person types.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
