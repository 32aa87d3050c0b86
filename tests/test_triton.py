"""The Triton kernels' tests in a process whose Triton interprets; what they need to be used."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flexinfer.errors import OptionError
from flexinfer.ops.torch_device import TorchDevice

TESTS = Path(__file__).parent


def test_kernels_are_right_in_the_interpreter() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "triton_interpreted.py"],
        cwd=TESTS,
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


def test_a_device_that_triton_cannot_compile_for_is_refused() -> None:
    with pytest.raises(OptionError, match="--device cpu: Triton cannot compile for it"):
        TorchDevice("cpu", fused=True)
    assert TorchDevice("cpu")._fused is None
