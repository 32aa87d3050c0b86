"""Every Triton kernel as A100 and H100 would run it, compiled ahead; that needs no GPU."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from flexinfer.formats.quants import BLOCK_TYPES
from flexinfer.ops.torch_triton import KINDS, MANY, ONE, SOME, Variant
from kernel_matrices import names

TYPES = [t for t, block in BLOCK_TYPES.items() if block.name in KINDS]
# From the CUDA programming guide: shared memory of a block of threads, and its registers.
SHARED_BYTES = {80: 163 * 1024, 90: 227 * 1024}
REGISTERS = 65536


@pytest.fixture(scope="module", autouse=True)
def _compiled_anew(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(tmp_path_factory.mktemp("triton"))
        yield


def compiled(variant: Variant, type_id: int, interleaved: bool, capability: int) -> Any:
    constants = variant.constants(type_id, interleaved)
    pointers = {
        "data": "*u8",
        "x": "*fp32" if variant is ONE else "*bf16",
        "out": "*fp32",
        "bias": "*fp32",
    }
    arguments = variant.kernel.arg_names
    signature = {n: "constexpr" if n in constants else pointers.get(n, "i32") for n in arguments}
    aligned = ("x", "data") if interleaved else ("x",)
    attributes = {(arguments.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source = ASTSource(variant.kernel, signature, constants, attributes)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=variant.options)


def resources(cubin: bytes, path: Path) -> tuple[int, int]:
    """Registers a thread and bytes of its stack, where registers are spilled to."""
    path.write_bytes(cubin)
    tool = triton.knobs.nvidia.cuobjdump.path
    text = subprocess.run([tool, "-res-usage", path], capture_output=True, text=True, check=True)
    ((registers, stack),) = re.findall(r"REG:(\d+) STACK:(\d+)", text.stdout)
    return int(registers), int(stack)


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("type_id", TYPES, ids=names)
def test_kernels_compile_and_fit(type_id: int, capability: int, tmp_path: Path) -> None:
    for variant in (ONE, SOME, MANY):
        products = []
        for interleaved in (False, True):
            kernel = compiled(variant, type_id, interleaved, capability)
            assert f".target sm_{capability}" in kernel.asm["ptx"]
            registers, stack = resources(kernel.asm["cubin"], tmp_path / "cubin")
            assert stack <= 16  # a register or two
            assert 32 * variant.warps * registers <= REGISTERS
            assert kernel.metadata.shared <= SHARED_BYTES[capability]
            products.append(set(re.findall(r"\w*mma\S*\.(m\d+n\d+k\d+)\S*", kernel.asm["ptx"])))
            if variant is ONE and interleaved:
                assert "ld.global.v4.b32" in kernel.asm["ptx"]  # of four rows
        # Rows that come in either layout are added by the same instructions.
        assert products[0] == products[1] and bool(products[0]) == (variant is not ONE)
