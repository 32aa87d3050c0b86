"""`flexinfer plan` as people run it: strategies, machines, curves, questions, drawings."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cli_tools import environment, flexinfer
from flexinfer.cli import main
from flexinfer.planner.choice import BASELINES
from flexinfer.units import GiB, MiB


def plan(*argv: object, **env: str) -> dict:
    done = flexinfer("plan", *argv, "--json", **env)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_a_named_shape_on_a_machine_one_does_not_have() -> None:
    facts = plan("llama-2-70b", "--hardware", "spr-h100", "--batch", "8", "--prompt-tokens", "512")
    assert (facts["hardware"], facts["hardware_source"]) == ("spr-h100", "preset")
    assert facts["vram_bytes"] == 80 * GiB and facts["batch"] == 8
    found = {s["name"]: s for s in facts["strategies"]}
    assert set(found) == {"flexinfer", *BASELINES} and facts["strategy"] == "flexinfer"
    best = found["flexinfer"]
    assert best["latency_s"] == min(s["latency_s"] for s in found.values())
    assert facts["predicted_tpot_s"] == best["tpot_s"] == best["decode"]["seconds"]
    assert len(best["decode"]["processors"]) == 80
    assert set(best["decode"]["processors"]) == {"host", "device"}
    assert sum(best["parts"]["device"].values()) <= 80 * GiB
    assert found["flexgen"]["decode"]["limit"] == "link"
    assert found["flexgen"]["decode"]["link_share"] == pytest.approx(1)
    assert facts["longest_context_tokens"] == 4096


def test_the_text_shows_strategies_memory_layers_and_traffic() -> None:
    done = flexinfer("plan", "opt-30b", "--hardware", "icl-a100", "--vram", "20GiB")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "opt-30b (BF16) on icl-a100"
    (chosen,) = [line for line in lines if line.startswith("→ ")]
    assert chosen.split()[1] == "flexinfer" and " / " in chosen
    (budget,) = [line for line in lines if line.startswith("device ")]
    assert budget.endswith("of 20 GiB")
    cells = [line.split()[1] for line in lines if line.startswith(("  prefill  █", "  decode   ·"))]
    assert [len(c) for c in cells] == [48] * len(cells) and cells
    assert any("host→device" in line for line in lines)
    assert all(len(line) <= 100 for line in lines)


@pytest.mark.parametrize("objective", ["ttft", "tpot"])
def test_an_objective_is_what_it_says(objective: str) -> None:
    argv = ("llama-2-7b", "--hardware", "laptop", "--prompt-tokens", "1500", "--new-tokens", "300")
    wanted = plan(*argv, "--objective", objective)
    whole = plan(*argv)
    name = f"predicted_{objective}_s"
    assert wanted[name] <= whole[name]


def test_a_strategy_by_name_and_a_machine_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "shed.toml"
    path.write_text(
        '[disk]\nbytes_per_s = 2e9\n[host]\nmemory_bytes = "8GiB"\nmemory_bytes_per_s = 2e10\n'
        "[host.kernels.any]\nops_per_s = 1e11\n"
    )
    facts = plan("llama-3-8b", "--hardware", path, "--type", "q4_0", "--strategy", "cpu-only")
    assert (facts["hardware"], facts["hardware_source"]) == ("shed", "file")
    assert facts["strategy"] == "cpu-only"
    weights = 128256 * 4096 + 32 * (2 * 4096 * (4096 + 1024) + 3 * 4096 * 14336)
    assert facts["predicted_tpot_s"] == pytest.approx(weights * 18 / 32 / 2e10, rel=0.02)
    small = plan("llama-3-8b", "--hardware", path, "--type", "Q4_0", "--ram", "3GiB")
    assert small["strategies"][0]["decode"]["limit"] == "disk"
    assert small["strategies"][0]["streamed_share"] > 0


def test_a_config_is_enough(tmp_path: Path) -> None:
    from flexinfer.models.shapes import NAMED

    path = tmp_path / "config.json"
    path.write_text(json.dumps(dict(NAMED["llama-2-13b"])))
    found, named = (
        plan(model, "--hardware", "desktop")["strategies"] for model in (path, "llama-2-13b")
    )
    for strategy in (*found, *named):
        del strategy["parts"]  # the process differs by a little from start to start
    assert found == named


def test_the_sweep_goes_from_the_least_budget_to_all(smollm_path: Path) -> None:
    facts = plan(smollm_path, "--prompt-tokens", "40", "--new-tokens", "24", "--sweep")
    points = facts["sweep"]
    budgets = [point["budget_bytes"] for point in points]
    assert budgets == sorted(budgets) and len(points) > 5
    assert points[0]["streamed_bytes"] > points[-1]["streamed_bytes"] == 0
    locked = [point["locked_bytes"] for point in points]
    assert locked == sorted(locked)
    for point in points:
        assert point["bound_tpot_s"] <= point["tpot_s"] * (1 + 1e-9)
    done = flexinfer("plan", smollm_path, "--ram", budgets[0] - 3 * MiB)
    assert done.returncode == 2 and "below the minimum" in done.stderr


def test_the_budget_for_a_speed_reaches_it(smollm_path: Path) -> None:
    argv = (smollm_path, "--prompt-tokens", "40", "--new-tokens", "24")
    free = plan(*argv)["predicted_tpot_s"]
    half = plan(*argv, "--target-tokens-per-s", 0.5 / free, "--sweep")
    needed = half["target_budget_bytes"]
    reached = [p for p in half["sweep"] if p["budget_bytes"] >= needed]
    assert reached and all(p["tpot_s"] <= 2.0001 * half["predicted_tpot_s"] for p in reached[1:])
    none = flexinfer("plan", *argv, "--target-tokens-per-s", 1e9)
    assert "are not reached with all the memory there is" in none.stdout


def test_the_longest_context_is_the_largest_that_is_not_refused(smollm_path: Path) -> None:
    ram = ("--ram", "100MiB")
    longest = plan(smollm_path, "--prompt-tokens", "40", "--new-tokens", "24", *ram)
    context = longest["longest_context_tokens"]
    assert 64 < context < 8192
    # Its pages are whole; the process differs by a little from start to start.
    assert flexinfer("plan", smollm_path, "--ctx", context - 128, *ram).returncode == 0
    assert flexinfer("plan", smollm_path, "--ctx", context + 192, *ram).returncode == 2


@pytest.mark.parametrize("form", ["svg", "png"])
def test_drawings(smollm_path: Path, tmp_path: Path, form: str) -> None:
    curve, memory = tmp_path / f"curve.{form}", tmp_path / f"memory.{form}"
    measured = tmp_path / "bench.json"
    measured.write_text(
        json.dumps(
            {
                "runs": [
                    {"budget_bytes": 110 * MiB, "decode_tokens_per_s": 20.0},
                    {"budget_bytes": 1, "error": "too little"},
                ]
            }
        )
    )
    done = flexinfer("plan", smollm_path, "--sweep", "--plot", curve, "--measured", measured)
    assert (done.returncode, done.stderr) == (0, "")
    done = flexinfer("plan", "opt-66b", "--hardware", "icl-a100", "--plot", memory)
    assert (done.returncode, done.stderr) == (0, "")
    start = {"svg": b"<?xml", "png": b"\x89PNG"}[form]
    assert curve.read_bytes().startswith(start) and memory.read_bytes().startswith(start)
    if form == "svg":
        assert "bound" in curve.read_text() and "measured" in curve.read_text()


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["llama-2-7b"], "llama-2-7b has no weights that could be run here"),
        (["llama-2-7b", "--hardware", "abacus"], "unknown hardware 'abacus'"),
        (["llama-2-7b", "--hardware", "none.toml"], "none.toml: No such file"),
        (["llama-2-7b", "--hardware", "mini-pc", "--vram", "1GiB"], "mini-pc has no accelerator"),
        (["llama-2-7b", "--hardware", "mini-pc", "--strategy", "flexgen"], "mini-pc has none"),
        (["llama-2-7b", "--hardware", "laptop", "--vram", "9GiB"], "--vram 9 GiB is more than"),
        (["llama-2-7b", "--hardware", "laptop", "--ram", "99GiB"], "--ram 99 GiB is more than"),
        (["llama-2-7b", "--hardware", "laptop", "--ram", "1MiB"], "do not hold what must stay"),
        (["llama-2-7b", "--hardware", "laptop", "--batch", "0"], "--batch is 0"),
        (["llama-2-7b", "--hardware", "laptop", "--policy", "tensor"], "--policy cannot take"),
        (["llama-2-7b", "--hardware", "laptop", "--ram", "0"], "0 B of host and 8 GiB of device"),
        (["llama-2-7b", "--hardware", "laptop", "--type", ""], "unknown --type ''"),
        (["llama-2-7b", "--hardware", "laptop", "--measured", "x.json"], "--measured cannot take"),
        (
            ["opt-30b", "--hardware", "laptop", "--objective", "tpot", "--strategy", "flexgen"],
            "--objective cannot take effect",
        ),
        (["llama-2-7b", "--hardware", "laptop", "--no-prefetch"], "--no-prefetch cannot take"),
        (["llama-2-7b", "--hardware", "laptop", "--ctx", "5000"], "context of 4096"),
        (["llama-2-7b", "--hardware", "laptop", "--ctx", "100"], "context of 100"),
        (["llama-2-7b", "--hardware", "laptop", "--type", "Q9"], "unknown --type 'Q9'"),
        (["llama-2-7b", "--hardware", "laptop", "--plot", "x.pdf"], "unknown form '.pdf'"),
        (["llama-2-7b", "--hardware", "laptop", "--plot", "no/x.svg"], "folder is not there"),
        (["llama-2-7b", "--hardware", "laptop", "--strategy", "split:3"], "where every split is"),
        (["llama-2-7b", "--hardware", "laptop", "--prefill-strategy", "cpu"], "--prefill-strategy"),
        (["llama-2-7b", "--hardware", "laptop", "--decode-strategy", "cpu"], "--decode-strategy"),
        (["llama-2-7b", "--hardware", "emulated:small"], "an accelerator without a host"),
        (["demo", "--type", "Q4_0"], "--type cannot take effect"),
        (["demo", "--vram", "1GiB"], "--vram cannot take effect on this machine yet"),
        (["demo", "--batch", "2"], "--batch cannot take effect on this machine yet"),
        (["demo", "--objective", "ttft"], "--objective cannot take effect"),
        (["demo", "--strategy", "cpu-only"], "--strategy cannot take effect"),
        (["demo", "--sweep", "--io-threads", "2"], "--io-threads cannot take effect at other"),
        (["demo", "--measured", "x.json"], "--measured takes effect only"),
    ],
)
def test_what_cannot_take_effect_is_an_error(
    argv: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == "" and named in err and "\nhint: " in err


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "[" * 100_000,
        '{"runs": [{"budget_bytes": 1e999, "decode_tokens_per_s": 1}]}',
        '{"runs": [{"budget_bytes": -5, "decode_tokens_per_s": 1}]}',
        '{"runs": [{"budget_bytes": 5, "decode_tokens_per_s": NaN}]}',
        '{"runs": [{"budget_bytes": "5", "decode_tokens_per_s": 1}]}',
    ],
)
def test_measured_points_that_are_none(
    text: str, smollm_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bench.json"
    path.write_text(text)
    drawn = ["--sweep", "--plot", str(tmp_path / "x.svg"), "--measured", str(path)]
    assert main(["plan", str(smollm_path), *drawn]) == 2
    assert "not what `flexinfer bench --json` prints" in capsys.readouterr().err


def test_a_config_nested_beyond_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text("[" * 100_000)
    assert main(["plan", str(path), "--hardware", "laptop"]) == 2
    assert f"error: {path}: not JSON" in capsys.readouterr().err


def test_a_drawing_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "folder.svg"
    target.mkdir()
    assert main(["plan", "llama-2-7b", "--hardware", "laptop", "--plot", str(target)]) == 2
    assert f"error: --plot {target}: cannot be written" in capsys.readouterr().err


def test_planning_imports_nothing_heavy() -> None:
    code = (
        "import sys; from flexinfer.cli import main;"
        "main(['plan', 'llama-2-70b', '--hardware', 'spr-h100', '--json']);"
        "print(*sorted({'torch', 'transformers', 'matplotlib', 'gguf'} & set(sys.modules)),"
        " file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=environment(),
    )
    assert done.stderr.strip() == ""
