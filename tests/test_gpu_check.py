"""scripts/gpu_check, with the CPU standing in for a device: what it reports, and how it fails."""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from flexinfer.errors import BudgetError
from flexinfer.formats.quants import BLOCK_TYPES

SCRIPT = Path(__file__).parent.parent / "scripts" / "gpu_check"
SMALL = (
    *("--installed", "--device", "cpu", "--no-profile", "--types", "Q4_0", "--shape", "small"),
    *("--layers", "2", "--offload-layers", "2", "--prompt-tokens", "20", "--new-tokens", "3"),
)


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports a module of the script; none stays."""
    monkeypatch.syspath_prepend(SCRIPT)

    def load(name: str) -> ModuleType:
        return __import__(name)

    before = set(sys.modules)
    yield load
    for name in set(sys.modules) - before:
        if str(SCRIPT) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def gpu_check(folder: Path, *options: str) -> tuple[int, str, dict[str, Any]]:
    file = folder / "found.json"
    command = [sys.executable, str(SCRIPT), *SMALL, "--json", str(file), "--folder", str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # shapes so small gain nothing by more
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, check=False, env=environment
    )
    assert file.exists(), done.stderr
    assert [path.name for path in folder.iterdir()] == ["found.json"]
    return done.returncode, done.stdout, json.loads(file.read_text())


def test_every_stage_reports_on_the_stand_in(tmp_path: Path) -> None:
    code, text, found = gpu_check(
        tmp_path, "--vram", "40MiB", "--strategies", "cpu", "flexgen", "split:1"
    )
    assert code == 0 and found["ok"], text
    assert {stage["name"] for stage in found["stages"]} == {
        *("machine", "agreement", "rates", "speed model", "cpu", "flexgen", "split:1"),
        *("model beside accelerate", "ours beside accelerate") * bool(found["offload"]),
        "accelerate",
    }
    assert found["machine"]["torch"] in text and found["commit"] in text
    (row,) = found["agreement"]
    assert row["type"] == "Q4_0" and row["runs"] == 27
    assert 0 < row["product_int8"] < 1e-5 and 0 < row["logit_int8"] < 5e-2
    assert 0 < row["product_torch"] < 1e-5 and 0 < row["logit_torch"] < 5e-2
    assert "product_fused" not in row  # which the stand-in has not
    assert found["rates"]["page_locked"] and found["rates"]["ours_to_device_bytes_per_s"] > 0
    speed = dict(found["speed"])
    for name, run in speed.items():
        assert run["ttft_s"] > 0 and run["predicted_tpot_s"] > 0, name
        assert run["new_tokens"] == 3 and run["device_bytes"] <= run["vram_bytes"] <= 40 << 20
    # Of one request, in which all weights but the embedding go over the link in each sweep.
    assert speed["flexgen"]["link_bytes"] > 0 and speed["cpu"]["link_bytes"] == 0
    assert speed["split:1"]["device_locked_layers"] == 1
    assert "| flexgen" in text and "FAILED" not in text


def test_what_fails_does_not_hide_the_rest(tmp_path: Path) -> None:
    code, text, found = gpu_check(
        tmp_path, "--tolerance-factor", "0", "--vram", "1MiB", "--strategies", "gpu-offload", "cpu"
    )
    assert code == 1 and not found["ok"]
    stages = {stage["name"]: stage for stage in found["stages"]}
    assert not stages["agreement"]["ok"] and "Q4_0" in stages["agreement"]["error"]
    assert "below the minimum" in stages["gpu-offload"]["error"]
    assert "--vram" in stages["gpu-offload"]["error"]
    assert all(stages[name]["ok"] for name in ("machine", "rates", "cpu"))
    assert dict(found["speed"])["cpu"]["ttft_s"] > 0
    assert text.count("FAILED") == 4  # two stages, and their rows in the tables


def test_an_absent_device_is_one_error(tmp_path: Path) -> None:
    code, _, found = gpu_check(tmp_path, "--device", "cuda:7")
    assert code == 1 and not found["ok"] and "agreement" not in found
    assert found["stages"][0]["error"].startswith("--device cuda:7: torch")
    assert "File " not in found["stages"][0]["error"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--device", "emulated:small"], "--device: an emulated accelerator"),
        (["--folder", "no/such/folder"], "--folder: there is no folder no/such/folder"),
        (["--json", "no/such/file.json"], "--json: there is no folder no/such"),
    ],
)
def test_what_cannot_be_checked_is_refused_at_once(options: list[str], named: str) -> None:
    command = [sys.executable, str(SCRIPT), *SMALL, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.splitlines()[-1].startswith("gpu_check: error: ")
    assert named in done.stderr and "Traceback" not in done.stderr


def test_a_child_says_in_a_row_what_somebody_can_mend(
    part: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(error: Exception) -> Any:
        def main() -> None:
            raise error

        return main

    child = part("child")
    child.run(fail(BudgetError("too much", "give less")))
    child.run(fail(OSError(28, "No space left on device", "speed.gguf")))
    rows = [json.loads(line)["error"] for line in capsys.readouterr().out.splitlines()]
    assert rows == ["too much (give less)", "speed.gguf: No space left on device"]
    with pytest.raises(ZeroDivisionError):
        child.run(fail(ZeroDivisionError()))


class Scripted:
    """A runner whose children end as they are told to."""

    def __init__(self, outcomes: list[Any]) -> None:
        self.outcomes = outcomes
        self.calls: list[list[str]] = []

    def script(self, name: str, script: str, arguments: list[object], limit_s: float) -> Any:
        self.calls.append([str(a) for a in arguments])
        return self.outcomes.pop(0)


def test_after_a_lost_device_the_other_types_are_tried(part: Any, tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("gpu_check_main", SCRIPT / "__main__.py")
    main = importlib.util.module_from_spec(spec)
    outcome = part("stages").Outcome
    spec.loader.exec_module(main)
    lost = [{"type": "F32", "runs": 27}, {"type": "F16", "error": "CUDA error: …"}]
    rest = [{"type": "Q4_0", "runs": 27}]
    runner = Scripted(
        [
            outcome("agreement", 1.0, tuple(lost), "ended with exit code 3", code=3),
            outcome("agreement", 1.0, tuple(rest), code=0),
        ]
    )
    args = argparse.Namespace(device="cuda", types=None, tolerance_factor=1.0)
    check = main.Check(args, runner, tmp_path)
    machine = {"types": ["F32", "F16", "Q4_0"], "cpus": 2}
    assert check.agreement(machine) == lost + rest
    assert "--after" not in runner.calls[0] and runner.calls[1][-2:] == ["--after", "F16"]
    first, second = check.outcomes
    assert not first.ok and "F16: CUDA error" in first.error and second.ok


def test_a_child_that_hangs_is_ended_and_what_it_said_is_kept(part: Any, tmp_path: Path) -> None:
    runner = part("stages").Runner(tmp_path, None, limit_s=60)
    hanging = 'print(\'{"type": "Q4_0"}\', flush=True); import time; time.sleep(600)'
    outcome = runner.command("hanging", ["-c", hanging], limit_s=3)
    assert not outcome.ok and outcome.code is None and "3 s" in outcome.error
    assert outcome.rows == ({"type": "Q4_0"},)
    outcome = runner.command("dying", ["-c", "raise SystemExit('no reason')"], limit_s=60)
    assert outcome.code == 1 and "no reason" in outcome.error
    assert not part("stages").Runner(tmp_path, None, limit_s=0).command("late", [], 9).ok


@pytest.mark.parametrize("kind", [t.name for t in BLOCK_TYPES.values() if t.has_kernel])
def test_random_rows_have_the_size_they_are_asked_for(part: Any, kind: str) -> None:
    models = part("models")
    rng = np.random.default_rng(0)
    rows = models.random_rows(rng, models.TYPES[kind], 32, 512, 0.04)
    values = dequantize(rows, GGMLQuantizationType[kind])
    assert values.shape == (32, 512)
    assert 0.03 < values.std() < 0.05 and abs(values.mean()) < 0.005


def test_accelerates_model_is_ours(part: Any, tmp_path: Path) -> None:
    import torch

    models, agreement, offload = part("models"), part("agreement"), part("offload")
    path = tmp_path / "model.gguf"
    models.write_model(path, models.SHAPES["tiny"], models.TYPES["Q8_0"])
    model = agreement.open_model(path)
    expected = agreement.Case(model, "f32").expected()
    reference = offload.reference(model).float()
    ids = torch.tensor([agreement.PROMPT + agreement.NEW])
    with torch.inference_mode():
        logits = reference(input_ids=ids).logits[0, len(agreement.PROMPT) - 1 :].numpy()
    # The file's activations are rounded to int8, transformers' weights to float16.
    assert np.abs(logits - expected).max() < 5e-2 * np.abs(expected).max()
    assert np.abs(logits).max() > 1


def test_a_wheel_is_unpacked_where_it_is_looked_for(part: Any, tmp_path: Path) -> None:
    wheel = tmp_path / "flexinfer-9.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("flexinfer/__init__.py", "")
        archive.writestr("flexinfer-9.0.dist-info/METADATA", "Name: flexinfer\nVersion: 9.0\n")
        archive.writestr("flexinfer-9.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("flexinfer-9.0.dist-info/RECORD", "")
    target = tmp_path / "target"
    part("install").install(tmp_path, target, wheel)
    assert (target / "flexinfer" / "__init__.py").is_file()


def test_what_is_missing_is_named(part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    install = part("install")
    install.check_runtime()
    monkeypatch.setattr(install, "NEEDED", ("numpy", "no_such_library"))
    with pytest.raises(install.Lacking, match="-m pip install no_such_library"):
        install.check_runtime()
    monkeypatch.setattr(install, "LEAST_PYTHON", (99, 1))
    with pytest.raises(install.Lacking, match=r"Python 99\.1 or later, this is 3"):
        install.check_runtime()
    monkeypatch.setattr(install, "BUILD_MODULES", {"no_such_backend": "no-such-backend"})
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(install.Lacking) as lacking:
        install.install(SCRIPT, SCRIPT / "never", None)
    for what in ("pip install no-such-backend", "a C++20 compiler", "GPU_CHECK_WHEEL"):
        assert what in str(lacking.value)
    assert not (SCRIPT / "never").exists()
