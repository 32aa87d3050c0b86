"""Accelerators by name, through torch: `cuda`, `cuda:1`, …, or `cpu`, a stand-in for tests whose
memory is the host's.
"""

import importlib.util
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch

from flexinfer.errors import OptionError
from flexinfer.models.spec import ModelSpec
from flexinfer.ops.torch import Activations, DeviceCache, Fused, Rows, TorchOps
from flexinfer.ops.torch_memory import DeviceArena, DeviceRegion
from flexinfer.ops.torch_weights import Memory
from flexinfer.planner.hardware import Device
from flexinfer.planner.machines import EMULATED, SMALL
from flexinfer.streaming.prefetcher import Stream

_KINDS = ("cpu", "cuda")


class TorchDevice:
    """An open device. Raises OptionError for one that is unknown, or not there.

    `fused`: whether products go through Triton's kernels, where there are some for a block type; by
    default where the device is CUDA's and Triton is there.
    """

    def __init__(
        self, name: str, activations: Activations = "float", *, fused: bool | None = None
    ) -> None:
        try:
            self._device = torch.device(name)
        except RuntimeError:
            self._device = None
        numbered = self._device is not None and self._device.index is not None
        if (
            self._device is None
            or self._device.type not in _KINDS
            or (numbered and self._device.type == "cpu")
        ):
            raise OptionError(
                f"unknown --device {name!r}",
                f"known: {', '.join(_KINDS)}, cuda:1, …, {EMULATED}{SMALL}, {EMULATED}MACHINE",
            )
        self.name = name
        self.emulates: Device | None = None
        self._activations = activations
        exact = self.stand_in or activations == "int8"  # to be compared with the host
        self._matmul: Any = torch.float32 if exact else torch.bfloat16
        self._fused: Fused | None = None
        self._before_bytes = 0
        if fused is None:
            fused = not exact and importlib.util.find_spec("triton") is not None
        if not self.stand_in:
            self._before_bytes = self._open_cuda(fused)
        elif fused:
            self._fused = self._open_fused()

    @property
    def stand_in(self) -> bool:
        """Its memory is the host's in truth."""
        return bool(self._device.type == "cpu")

    @property
    def runtime_bytes(self) -> int:
        """What its libraries took, before anything of ours."""
        return self._before_bytes

    @property
    def free_bytes(self) -> int | None:
        """None where the host's memory is the limit."""
        return None if self.stand_in else int(torch.cuda.mem_get_info(self._device)[0])

    def arena(self, size_bytes: int) -> DeviceArena:
        if not self.stand_in:
            torch.cuda.empty_cache()  # what a probe or an earlier run left is in no budget
        return DeviceArena(self._device, size_bytes)

    def page_lock(self, address: int, size_bytes: int) -> bool:
        """Let the driver copy from this host memory directly: a copy from any other goes through
        the driver's own staging, and its caller waits. False where the driver refuses.
        """
        if self.stand_in:
            return True
        with torch.cuda.device(self._device):
            error = int(torch.cuda.cudart().cudaHostRegister(address, size_bytes, 0))
            if error:
                with suppress(RuntimeError):  # the refusal would be raised by the next launch
                    torch.zeros(1, device=self._device)
        return not error

    def page_unlock(self, address: int) -> None:
        """Before what `page_lock` took is given back; nothing may be copied from it any more."""
        if not self.stand_in:
            torch.cuda.cudart().cudaHostUnregister(address)

    def synchronise(self) -> None:
        if not self.stand_in:
            torch.cuda.synchronize(self._device)

    def cache(
        self,
        spec: ModelSpec,
        regions: Sequence[tuple[DeviceRegion, DeviceRegion]],
        tokens: int,
        kv_type: str,
    ) -> DeviceCache:
        """Keys and values of each layer in its two regions."""
        shape = (spec.kv_heads, tokens, spec.head_dim)
        dtype = {"f16": "float16", "f32": "float32"}[kv_type]
        keys, values = zip(
            *((k.array(dtype, shape), v.array(dtype, shape)) for k, v in regions), strict=True
        )
        return DeviceCache(keys, values)

    def ops(
        self,
        spec: ModelSpec,
        memory: Memory,
        cache: DeviceCache | None,
        embedding: Rows | None,
        stream: Stream | None,
    ) -> TorchOps:
        return TorchOps(
            self._device,
            spec,
            memory,
            cache or DeviceCache((), ()),
            embedding,
            stream,
            activations=self._activations,
            matmul=self._matmul,
            fused=self._fused,
        )

    def _open_cuda(self, fused: bool) -> int:
        if not torch.cuda.is_available():
            raise OptionError(
                f"--device {self.name}: torch {torch.__version__} finds no CUDA device",
                "install a build of torch for CUDA, or leave --device out",
            )
        try:
            before = torch.cuda.mem_get_info(self._device)[0]
            probe = torch.ones(256, 256, device=self._device)
            (probe @ probe).sum().item()  # loads the libraries
            if fused:
                self._fused = self._open_fused()
            torch.cuda.empty_cache()
            after = torch.cuda.mem_get_info(self._device)[0]
        except RuntimeError as error:
            raise OptionError(f"--device {self.name}: {error}", "look at nvidia-smi") from error
        return max(0, int(before) - int(after))

    def _open_fused(self) -> Fused:
        """Triton compiles for the device as it goes, by a C compiler, too; whether it can shows at
        a first product.
        """
        from flexinfer.ops.torch_triton import FusedProducts

        fused = FusedProducts(self._matmul)
        zeros = torch.zeros(16, 34, dtype=torch.uint8, device=self._device)
        x, out = torch.ones(1, 32, device=self._device), torch.ones(1, 16, device=self._device)
        try:
            fused.multiply(8, zeros, 0, x, out, interleaved=False)  # Q8_0
        except Exception as error:  # whatever its compilers raise
            raise OptionError(
                f"--device {self.name}: Triton cannot compile for it: {error}",
                "install a C compiler and Python's headers",
            ) from error
        return fused
