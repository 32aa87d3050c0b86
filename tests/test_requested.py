"""Strategies by name, and devices that are not there."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cli_tools import flexinfer
from factory import make_gguf
from flexinfer import LLM, SamplingParams
from flexinfer.errors import OptionError
from flexinfer.executor.device import open_device
from flexinfer.planner.requested import requested


@pytest.mark.parametrize(
    ("names", "prefill", "decode", "lock", "static"),
    [
        (("cpu", None, None), 0, 0, True, False),
        (("gpu-offload", None, None), 4, 4, True, False),
        (("split:3", None, None), 3, 3, True, False),
        (("flexgen", None, None), 4, 4, False, False),
        (("flexgen-opt", None, None), 4, 4, True, False),
        (("splitgen", None, None), 4, 4, True, True),
        (("cpu", "gpu-offload", None), 4, 0, True, False),
        (("auto", "split:1", "cpu"), 1, 0, True, False),
    ],
)
def test_names(
    names: tuple[str, str | None, str | None], prefill: int, decode: int, lock: bool, static: bool
) -> None:
    found = requested(*names, layers=4)
    assert found is not None
    layers = (found.prefill.device_layers, found.decode.device_layers)
    assert (*layers, found.lock, found.static) == (prefill, decode, lock, static)


def test_auto_leaves_it_to_the_planner() -> None:
    assert requested("auto", None, None, 4) is None


@pytest.mark.parametrize(
    "names",
    [
        ("gpu", None, None),
        ("split:5", None, None),
        ("split:", None, None),
        ("split:-1", None, None),
        ("split:٣", None, None),
        ("", None, None),
        ("cpu", "", None),
        ("split:1_0", None, None),
        (f"split:{'9' * 5000}", None, None),
        ("flexgen", "cpu", None),
        ("auto", "cpu", None),
    ],
)
def test_what_cannot_be_meant_is_refused(names: tuple[str, str | None, str | None]) -> None:
    with pytest.raises(OptionError) as refused:
        requested(*names, layers=4)
    assert refused.value.hint


@pytest.mark.parametrize("name", ["gpu", "meta", "cuda:99", "cuda", "cpu:1"])
def test_devices_that_are_not_there_are_refused(name: str) -> None:
    with pytest.raises(OptionError, match=name):
        open_device(name)


def test_without_torch_a_device_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from flexinfer.errors import OptionError\n"
        "from flexinfer.executor.device import open_device\n"
        "try: open_device('cuda')\n"
        "except OptionError as error: print(error, error.hint)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert "needs torch" in done.stdout and "flexinfer[torch]" in done.stdout


@pytest.mark.parametrize(
    "options",
    [
        ["--vram", "1GiB"],
        ["--strategy", "cpu"],
        ["--device", "cpu"],  # a stand-in does not say how much there is
        ["--device", "cpu", "--vram", "1MiB", "--strategy", "gpu-offload"],
        ["--device", "cpu", "--vram", "1GiB", "--strategy", "cpu"],
    ],
)
def test_options_that_cannot_take_effect_are_refused(smollm_path: Path, options: list[str]) -> None:
    done = flexinfer("run", str(smollm_path), "Hello", "--ram", "2GiB", *options)
    assert done.returncode == 2
    assert "error:" in done.stderr and "hint:" in done.stderr


@pytest.mark.parametrize(
    "strategy",
    [
        ["--strategy", "split:7"],
        ["--strategy", "splitgen"],
        ["--prefill-strategy", "gpu-offload", "--decode-strategy", "cpu"],
    ],
)
def test_a_plan_takes_the_strategies_of_a_run(smollm_path: Path, strategy: list[str]) -> None:
    device = ["--device", "cpu", "--vram", "60MiB", "--ram", "2GiB", "--json", *strategy]
    work = ["--prompt-tokens", "31", "--new-tokens", "2"]
    planned = json.loads(flexinfer("plan", smollm_path, *work, *device).stdout)
    done = flexinfer("bench", smollm_path, *work, "--repeat", "1", *device)
    (run,) = json.loads(done.stdout)["runs"]
    for name in ("prefill_strategy", "decode_strategy", "vram_bytes", "locked_bytes"):
        assert planned[name] == run[name], name


def test_a_run_on_two_processors_says_what_it_did(smollm_path: Path) -> None:
    done = flexinfer(
        "run", str(smollm_path), "Hello", "--raw", "--ram", "2GiB", "--device", "cpu", "--vram",
        "45MiB", "--prefill-strategy", "split:2", "--decode-strategy", "split:1", "--max-tokens",
        "2", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["link_bytes"] > 0
    assert 0 < answer["device_bytes"] <= answer["vram_bytes"] == 45 << 20
    assert answer["peak_rss_bytes"] <= 2 << 30
    assert "prefill split(2), decode split(1)" in done.stderr


def test_left_to_itself_the_choice_is_one_that_fits(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    make_gguf(path, "llama", block_type="Q8_0", num_hidden_layers=2)
    kinds = {"device": "cpu", "vram": "64MiB", "ram": "3GiB", "ctx": 64}
    with LLM(path, **kinds) as chosen, LLM(path, **kinds, strategy="splitgen") as fixed:
        params = SamplingParams(max_tokens=2, ignore_end=True)
        assert len(chosen.generate([5, 6, 7], params).token_ids) == 2
        static = fixed.plan.device
        assert static is not None and static.decode.name == "gpu-offload"
        assert len(static.locked_layers) == len(static.cached_layers) == 2
        assert fixed.stats.predicted_tpot_s > 0
