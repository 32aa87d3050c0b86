"""Child: what the device and its link give, bare and through our own code. One JSON object."""

import argparse
import ctypes
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import child
import torch
from models import SHAPES, TYPES, write_model

from flexinfer.executor.device_probe import probe_device
from flexinfer.executor.model import open_model
from flexinfer.memory.arena import Arena
from flexinfer.ops.torch_device import TorchDevice
from flexinfer.planner.device import LINK_THREADS
from flexinfer.units import GiB, MiB

REQUEST_BYTES = 4 * MiB  # the largest that the link's stream makes
REPEATS = 5


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--types", nargs="+", default=list(TYPES), choices=TYPES)
    args = parser.parse_args()
    device = TorchDevice(args.device)
    bare = _bare(torch.device(args.device), device)
    ours = _ours(device)
    path = args.folder / "rates.gguf"
    types = {}
    for name in args.types:
        write_model(path, SHAPES["tiny"], TYPES[name])
        probed = probe_device(device, open_model(path), GiB)
        types[name] = {
            "bytes_per_s": probed.memory_bytes_per_s,
            "streamed_bytes_per_s": probed.streamed_bytes_per_s,
            "ops_per_s": probed.ops_per_s[name],
        }
    path.unlink()
    link = {
        "probed_to_device_bytes_per_s": probed.to_device.bytes_per_s,
        "probed_to_device_latency_s": probed.to_device.latency_s,
        "probed_to_host_bytes_per_s": probed.to_host.bytes_per_s,
        "probed_layer_s": probed.layer_s,
    }
    print(json.dumps(bare | ours | link | {"types": types}))


def _bare(torch_device: Any, device: TorchDevice) -> dict[str, float]:
    """torch's own copies and products."""
    size_bytes = 16 * MiB if device.stand_in else 256 * MiB
    there = torch.empty(size_bytes, dtype=torch.uint8, device=torch_device)
    twin = torch.empty_like(there)
    pageable = torch.ones(size_bytes, dtype=torch.uint8)
    pinned = pageable if device.stand_in else pageable.pin_memory()
    rates = {
        "pageable_to_device_bytes_per_s": (size_bytes, lambda: there.copy_(pageable)),
        "pinned_to_device_bytes_per_s": (
            size_bytes,
            lambda: there.copy_(pinned, non_blocking=True),
        ),
        "pinned_to_host_bytes_per_s": (size_bytes, lambda: pinned.copy_(there, non_blocking=True)),
        "memory_bytes_per_s": (2 * size_bytes, lambda: twin.copy_(there)),
    }
    n = 512 if device.stand_in else 4096
    kind = torch.float32 if device.stand_in else torch.bfloat16
    a = torch.randn(n, n, device=torch_device).to(kind)
    rates["matmul_ops_per_s"] = (2 * n**3, lambda: torch.mm(a, a))
    found = {name: n / _least_s(work, device) for name, (n, work) in rates.items()}
    return found | {"matmul_type": str(kind).removeprefix("torch.")}


def _ours(device: TorchDevice) -> dict[str, Any]:
    """Host memory page-locked as a session does it, copied by as many threads in requests."""
    slots = 4
    memory = device.arena(slots * REQUEST_BYTES)
    targets = [memory.take(REQUEST_BYTES) for _ in range(slots)]
    with Arena(slots * REQUEST_BYTES) as arena, ThreadPoolExecutor(LINK_THREADS) as threads:
        source = arena.take(slots * REQUEST_BYTES)
        ctypes.memset(source.address, 1, source.size_bytes)
        page_locked = device.page_lock(arena.address, arena.used_bytes)

        def copy(index: int) -> None:
            slot = index % slots
            address = source.address + slot * REQUEST_BYTES
            memory.copy(address, REQUEST_BYTES, targets[slot])

        def all_of_them() -> None:
            list(threads.map(copy, range(8 * slots)))

        seconds = _least_s(all_of_them, device)
        if page_locked:
            device.page_unlock(arena.address)
    rate = 8 * slots * REQUEST_BYTES / seconds
    return {"ours_to_device_bytes_per_s": rate, "page_locked": page_locked}


def _least_s(work: Callable[[], object], device: TorchDevice) -> float:
    times = []
    for _ in range(REPEATS + 1):  # the first warms up
        started = time.perf_counter()
        work()
        device.synchronise()
        times.append(time.perf_counter() - started)
    return min(times[1:])


if __name__ == "__main__":
    child.run(main)
