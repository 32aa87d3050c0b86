"""Child: the device, and what runs on it. One JSON object."""

import argparse
import json
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import child
import torch
from models import TYPES

import flexinfer
from flexinfer.memory.budget import available_memory, cpus_available
from flexinfer.ops.torch_device import TorchDevice

NAMED = ("triton", "transformers", "accelerate")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True)
    name = parser.parse_args().device
    device = TorchDevice(name, fused=False)  # whether Triton works is seen later
    facts = {
        "device": "the CPU as a stand-in",
        "driver": None,
        "device_memory_bytes": None,
        "runtime_bytes": device.runtime_bytes,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "flexinfer": str(Path(flexinfer.__file__).parent),
        "cpus": cpus_available(),
        "types": list(TYPES),
        "available_ram_bytes": available_memory().bytes,
        **{package: _version(package) for package in NAMED},
    }
    if not device.stand_in:
        properties = torch.cuda.get_device_properties(torch.device(name))
        major, minor = properties.major, properties.minor
        facts |= {
            "device": properties.name,
            "compute_capability": f"{major}.{minor}",
            "multiprocessors": properties.multi_processor_count,
            "driver": _driver(),
            "device_memory_bytes": properties.total_memory,
        }
    print(json.dumps(facts))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _driver() -> str:
    if shutil.which("nvidia-smi"):
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.strip():
            return done.stdout.split()[0]
    file = Path("/proc/driver/nvidia/version")
    return file.read_text().splitlines()[0] if file.is_file() else "unknown"


if __name__ == "__main__":
    child.run(main)
