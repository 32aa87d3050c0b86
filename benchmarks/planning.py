"""How long planning takes: the choice for an 80-layer model, and the whole command.

    python benchmarks/planning.py [--repeat 7] [--json]

The choice is timed in this process for both of paper A's servers and several batches (the longest
median is told), the command from start to end in a process of its own.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median

from machine import machine

from flexinfer.models.shapes import named_shape
from flexinfer.planner.choice import Chooser
from flexinfer.planner.presets import PRESETS
from flexinfer.planner.tiers import Load

MODEL = "llama-2-70b"
COMMAND = [sys.executable, "-m", "flexinfer", "plan", MODEL, "--hardware", "spr-h100", "--json"]


def seconds(call: Callable[[], object], repeat: int) -> float:
    times = []
    for _ in range(repeat):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return median(times)


def choice_s(hardware_name: str, sequences: int, repeat: int) -> float:
    shape, hardware = named_shape(MODEL), PRESETS[hardware_name]
    assert hardware.device and hardware.host.memory_bytes
    ram, vram = hardware.host.memory_bytes, hardware.device.memory_bytes

    def choose() -> object:
        load = Load(512, 128, 640, sequences)
        return Chooser(
            shape.spec, shape.weights, hardware, load, ram_bytes=ram, vram_bytes=vram
        ).choose()

    return seconds(choose, repeat)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    choices = {
        f"{name}, batch {batch}": choice_s(name, batch, args.repeat)
        for name in ("icl-a100", "spr-h100")
        for batch in (1, 8, 32)
    }
    command_s = seconds(
        lambda: subprocess.run(COMMAND, capture_output=True, check=True), args.repeat
    )
    if args.json:
        print(json.dumps({"machine": machine(), "choice_s": choices, "command_s": command_s}))
        return
    print(f"{MODEL}; {machine()}")
    for name, taken in choices.items():
        print(f"{name:22} {taken * 1e3:6.1f} ms")
    print(f"{'the command':22} {command_s * 1e3:6.0f} ms")


if __name__ == "__main__":
    main()
