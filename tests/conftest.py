"""Real models for the tests: their folder is FLEXINFER_TEST_MODELS, by default `models` here."""

import importlib.util
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from mounts import Mounts

# A job in the background, or under nohup, ignores these, and so do its children; tests send them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# No test reads or writes the profile of whoever runs it.
_CACHE = tempfile.TemporaryDirectory(prefix="flexinfer-cache-")
os.environ["XDG_CACHE_HOME"] = _CACHE.name
# How long an example takes says nothing on a machine that others use.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")

# Another build of the native module stands in for the installed one: `make sanitize`.
if _kernels := os.environ.get("FLEXINFER_TEST_KERNELS"):
    _spec = importlib.util.spec_from_file_location("flexinfer._kernels", _kernels)
    assert _spec is not None and _spec.loader is not None
    sys.modules[_spec.name] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules[_spec.name])

_FOLDER = Path(os.environ.get("FLEXINFER_TEST_MODELS", Path(__file__).parent.parent / "models"))


def _model(name: str) -> Path:
    path = _FOLDER / name
    if not path.is_file():
        pytest.fail(f"{path} is missing: run `make models`, or set FLEXINFER_TEST_MODELS")
    return path


@pytest.fixture(scope="session")
def smollm_path() -> Path:
    """SmolLM2-135M-Instruct, Q4_1 with a Q8_0 embedding that is the head as well."""
    return _model("SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="session")
def gemma_path() -> Path:
    """Gemma 3 270M, Q4_K_M, with the largest vocabulary about (262,144)."""
    return _model("gemma-3-270m-q4_k_m.gguf")


@pytest.fixture
def mounts(tmp_path: Path) -> Iterator[Mounts]:
    """File systems of the test's own, see `mounts`."""
    mounts = Mounts(tmp_path)
    yield mounts
    mounts.close()
