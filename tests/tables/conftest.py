import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "dataset"))  # random graphs, and how to read them
