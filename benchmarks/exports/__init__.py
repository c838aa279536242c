"""Real exports to measure on: full-size models, and small ones of architectures that are not golden."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "golden"))
