"""Where the MODEL of a command line is."""

import os
from pathlib import Path

from flexinfer.errors import FormatError

DEMO_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def model_path(name: str) -> Path:
    """The file that MODEL names; `demo` is what `make demo` fetches (a file of that name: ./demo).

    It is looked for in $FLEXINFER_MODELS, else in ./models and this checkout's models folder.
    """
    if name != "demo":
        return Path(name)
    folder = os.environ.get("FLEXINFER_MODELS")
    checkout = Path(__file__).parents[3] / "models"
    folders = [Path(folder)] if folder else [Path("models"), checkout]
    for place in folders:
        if (place / DEMO_FILE).is_file():
            return place / DEMO_FILE
    raise FormatError(
        f"the demo model {DEMO_FILE} is not in {' or '.join(map(str, folders))}",
        "run `make demo`, or name its folder in FLEXINFER_MODELS",
    )
