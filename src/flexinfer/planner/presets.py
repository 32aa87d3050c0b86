"""Machines that one does not have, from data sheets times efficiencies that are stated once, here.

Peaks are the makers': cores, clocks and channels of Intel's and AMD's processors, NVIDIA's data
sheets (dense products), JEDEC's and PCI-SIG's rates. No efficiency is fitted to a figure that a
benchmark compares with. Of these only the first is somebody's measurement; the others are taken as
what good software usually reaches:

- `MATRIX` 0.22: matrix products on AMX reach 20 of 90 TFLOPS on a 40-core Sapphire Rapids (LIA,
  ISCA 2025). Without AMX the same products run on vector units, which are easily kept busy:
  `VECTOR` 0.7.
- `MEMORY` 0.8 of the channels of one socket, as a copy reaches. A second socket's cores count, its
  channels do not: the engine places memory where it is first touched, without regard to sockets.
- `DEVICE_MATRIX` 0.6 of the dense peak, `DEVICE_MEMORY` 0.8.
- `LINK` 0.8 of the link's rate: 25 of PCIe 4.0's 31.5 GB/s from pinned memory. `LINK_LATENCY_S` is
  what a copy takes from asking to its first byte.
"""

from flexinfer.errors import OptionError
from flexinfer.formats.quants import BLOCK_TYPES
from flexinfer.planner.disk import Disk
from flexinfer.planner.hardware import (
    AttentionRates,
    Device,
    Hardware,
    Host,
    KernelRates,
    Link,
)
from flexinfer.units import GiB

MATRIX, VECTOR = 0.22, 0.7
MEMORY = 0.8
DEVICE_MATRIX, DEVICE_MEMORY = 0.6, 0.8
LINK = 0.8
PCIE_4, PCIE_5 = 31.5e9, 63e9  # of 16 lanes, each way
LATENCY_S = 50e-6  # of a short direct read
LINK_LATENCY_S = 10e-6
STREAMED = 0.5  # weights in the file's layout, of the speed of interleaved ones: measured here


def _host(memory: float, ops: float, memory_gib: int) -> Host:
    """All block types alike: one token's product is a matter of memory, many tokens' of arithmetic,
    the same once weights are unpacked. Attention multiplies at the rate of the products.
    """
    rates = KernelRates(memory, STREAMED * memory, ((1, ops),))
    return Host(
        memory_bytes_per_s=memory,
        kernels={kind.name: rates for kind in BLOCK_TYPES.values()},
        attention=(AttentionRates(128, 1, ops, ops),),
        memory_bytes=memory_gib * GiB,
    )


def _disk(bytes_per_s: float) -> Disk:
    """One request at a time reaches about 0.7 of what several do."""
    return Disk({1: 0.7 * bytes_per_s, 2: bytes_per_s}, LATENCY_S)


def _device(memory_gib: int, memory: float, ops: float, link: float) -> Device:
    return Device(
        memory_bytes=memory_gib * GiB,
        memory_bytes_per_s=DEVICE_MEMORY * memory,
        ops_per_s={kind.name: DEVICE_MATRIX * ops for kind in BLOCK_TYPES.values()},
        to_device=Link(LINK * link, LINK_LATENCY_S),
        to_host=Link(LINK * link, LINK_LATENCY_S),
    )


PRESETS: dict[str, Hardware] = {
    machine.name: machine
    for machine in (
        # 2 × 32 cores × 2.2 GHz × 64 operations (two AVX-512 units, float32: it has no bfloat16),
        # 8 channels of DDR4-3200 each; A100 40 GB PCIe.
        Hardware(
            "icl-a100",
            "preset",
            _disk(6.5e9),
            _host(MEMORY * 204.8e9, VECTOR * 2 * 32 * 2.2e9 * 64, 256),
            _device(40, 1555e9, 312e12, PCIE_4),
        ),
        # 2 × 32 cores × 2.2 GHz × 1,024 bfloat16 operations (AMX), 8 channels of DDR5-4800 each;
        # H100 80 GB PCIe.
        Hardware(
            "spr-h100",
            "preset",
            _disk(6.5e9),
            _host(MEMORY * 307.2e9, MATRIX * 2 * 32 * 2.2e9 * 1024, 512),
            _device(80, 2000e9, 756e12, PCIE_5),
        ),
        # 8 cores × 3.5 GHz × 32 (AVX2), DDR5-5600 on two channels, NVMe of PCIe 4.0 × 4; a mobile
        # GPU with 8 GB (RTX 4060) on 8 lanes.
        Hardware(
            "laptop",
            "preset",
            _disk(5e9),
            _host(MEMORY * 89.6e9, VECTOR * 8 * 3.5e9 * 32, 32),
            _device(8, 256e9, 60e12, PCIE_4 / 2),
        ),
        # 16 cores × 4.3 GHz × 32 (AVX2), DDR5-5600 on two channels; 24 GB (RTX 4090) on PCIe 4.0.
        Hardware(
            "desktop",
            "preset",
            _disk(6.5e9),
            _host(MEMORY * 89.6e9, VECTOR * 16 * 4.3e9 * 32, 64),
            _device(24, 1008e9, 165e12, PCIE_4),
        ),
        # 4 cores × 3 GHz × 16 (AVX2, one port), DDR4-3200 on one channel, NVMe of PCIe 3.0.
        Hardware(
            "mini-pc",
            "preset",
            _disk(2e9),
            _host(MEMORY * 25.6e9, VECTOR * 4 * 3e9 * 16, 16),
        ),
    )
}


def preset(name: str) -> Hardware:
    """Raises OptionError for a name that is none."""
    if name not in PRESETS:
        raise OptionError(
            f"unknown hardware {name!r}",
            f"known: {', '.join(PRESETS)}, or a file: ./machine.toml; accelerators alone, as "
            "emulated:small, are for --device",
        )
    return PRESETS[name]
