"""`run`, `plan`, `bench` and `perplexity` with a real model, each in a process of its own."""

import io
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from cli_tools import environment, flexinfer
from flexinfer.cli import main
from flexinfer.units import format_bytes

NAMES = [
    "text",
    "token_ids",
    "prompt_tokens",
    "new_tokens",
    "ttft_s",
    "tpot_s",
    "load_s",
    "stall_s",
    "disk_read_bytes",
    "locked_bytes",
    "streamed_bytes_per_sweep",
    "sweeps",
    "peak_rss_bytes",
    "budget_bytes",
    "predicted_ttft_s",
    "predicted_tpot_s",
    "bound_tpot_s",
    "link_bytes",
    "device_bytes",
    "vram_bytes",
    "device",
    "emulated",
    "finish_reason",
]
BUDGET = 110 << 20  # a third of the weights stays
SMILES = "Say: " + "😀" * 12


def test_json_is_one_object_of_exactly_these_names(smollm_path: Path) -> None:
    done = flexinfer("run", smollm_path, "Hi", "--ram", BUDGET, "--max-tokens", 5, "--json")
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)
    assert sorted(run) == sorted(NAMES)
    assert len(run["token_ids"]) == run["new_tokens"] == run["sweeps"] == 5
    assert run["finish_reason"] == "length"
    assert run["peak_rss_bytes"] <= run["budget_bytes"] == BUDGET
    assert 0 < run["locked_bytes"] < run["streamed_bytes_per_sweep"]
    swept = run["locked_bytes"] + run["sweeps"] * run["streamed_bytes_per_sweep"]
    assert 0 <= run["disk_read_bytes"] - swept <= 0.05 * swept + (16 << 20)
    peak = f"peak {format_bytes(run['peak_rss_bytes'])} of 110 MiB"
    for figure in (peak, "predicted", "locked ("):
        assert figure in done.stderr
    assert "\x1b" not in done.stderr and "\r" not in done.stderr


def test_text_streams_whole_characters_and_nothing_else(smollm_path: Path) -> None:
    argv = ("run", smollm_path, SMILES, "--raw", "--ram", BUDGET, "--max-tokens", 16, "--quiet")
    streamed = flexinfer(*argv)
    text = json.loads(flexinfer(*argv, "--json").stdout)["text"]
    assert streamed.stdout == f"{text}\n" and streamed.stderr == ""
    assert "😀" not in flexinfer(*argv, PYTHONIOENCODING="ascii").stdout
    assert text.count("😀") > 3 and "\N{REPLACEMENT CHARACTER}" not in text.removesuffix("\ufffd")


def test_a_prompt_may_come_through_a_pipe(smollm_path: Path) -> None:
    argv = (smollm_path, "--max-tokens", 4, "--ram", BUDGET, "--quiet")
    told = flexinfer("run", argv[0], "Hello there", *argv[1:]).stdout
    assert told.strip()
    assert flexinfer("run", *argv, stdin=b"Hello there\n").stdout == told


@pytest.mark.parametrize(
    ("argv", "stdin", "named"),
    [
        (["--ctx", "8"], b"Hello there", r"tokens, the context 8"),
        ([], b"", "standard input is empty"),
        ([], b"\xff\xfe", "not UTF-8"),
        (["", "--raw"], b"", "the prompt is empty"),
        (["hi", "--ram", "1MiB"], b"", "minimum"),
        (["hi", "--force"], b"", "--force"),
        (["hi", "--ctx", "9999"], b"", "8192"),
        (["hi", "--ctx", "-1", "--max-tokens", "4"], b"", "--ctx is -1"),
        (["hi", "--max-tokens", "8193"], b"", "--max-tokens is 8193, the context 8192 tokens"),
        (["hi", "--max-tokens", "1000000000000"], b"", "the context 8192 tokens"),
        (["hi", "--max-tokens", "65", "--ctx", "64"], b"", "--max-tokens is 65, the context 64"),
        (["hi", "--threads", "0"], b"", "--threads is 0"),
        (["hi", "--threads", "100000"], b"", "it must be 1 to 1024"),
        (["hi", "--io-threads", "0"], b"", "--io-threads is 0; it must be 1 to 16"),
        (["hi", "--io-threads", "17"], b"", "--io-threads is 17"),
        (["hi", "--prefetch-window", "0"], b"", "it must be 1 to 1024"),
        (["hi", "--prefetch-window", "1"], b"", "uses up to 2 reads at once"),
        (["hi", "--prefetch-window", "2", "--io-threads", "3"], b"", "no room for more than 2"),
        (["hi", "--prefetch-window", "8", "--no-prefetch"], b"", "with --no-prefetch"),
        (["hi", "--io-threads", "2", "--no-prefetch"], b"", "with --no-prefetch"),
        (["hi", "--prefetch-window", "8", "--ram", "1GiB"], b"", "all weights are locked"),
        (["hi", "--io-threads", "2", "--ram", "1GiB"], b"", "all weights are locked"),
        (["hi", "--kv-type", "q3"], b"", "q3"),
        (["hi", "--policy", "luck"], b"", "luck"),
    ],
)
def test_what_cannot_be_done_is_refused_before_it_begins(
    argv: list[str],
    stdin: bytes,
    named: str,
    smollm_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
    assert main(["run", str(smollm_path), *argv]) == 2
    out, err = capsys.readouterr()
    error, hint = err.splitlines()
    assert out == ""
    assert error.startswith("error: ") and named in error and hint.startswith("hint: ")


def test_an_answer_that_the_context_cuts_is_planned_and_told_as_such(smollm_path: Path) -> None:
    argv = ("run", smollm_path, "Count to a hundred", "--ctx", 64, "--json")
    for more in ((), ("--max-tokens", 64)):
        done = flexinfer(*argv, *more)
        run = json.loads(done.stdout)
        room = 64 - run["prompt_tokens"] + 1
        assert f"the context has room for {room} new tokens" in done.stderr
        assert run["new_tokens"] <= room
    done = flexinfer(*argv, "--max-tokens", 64 - run["prompt_tokens"] + 1)
    assert "room for" not in done.stderr


def test_a_budget_below_the_minimum_is_refused_with_its_parts(smollm_path: Path) -> None:
    argv = ("run", smollm_path, "hi", "--max-tokens", 4, "--json", "--ram")
    refused = flexinfer(*argv, "24MiB")
    for part in ("24 MiB", "interpreter", "tokenizer", "kv cache", "ring", "margin"):
        assert part in refused.stderr
    accepted = flexinfer(*argv, refused.stderr.split("--ram ")[1].split()[0])
    assert accepted.returncode == 0, accepted.stderr
    run = json.loads(accepted.stdout)
    assert run["peak_rss_bytes"] <= run["budget_bytes"]


_MANY_PROMPTS = """
import sys
from flexinfer import LLM, SamplingParams
from flexinfer.memory.budget import peak_resident_bytes
with LLM(sys.argv[1], ram=int(sys.argv[2]), ctx=512) as llm:
    words = "river stone 山 été 42 {} 😀 the end".split()
    for turn in range(16):
        prompt = " ".join(words[(turn * i + turn) % 9] for i in range(1, 2 + 23 * (turn % 9)))
        done = llm.generate(prompt, SamplingParams(max_tokens=2 + turn % 3, temperature=turn % 2))
        assert done.stats.new_tokens and peak_resident_bytes() <= llm.plan.budget_bytes, turn
    assert llm.plan.placement.requests
"""


def test_many_different_prompts_stay_within_the_budget(smollm_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", _MANY_PROMPTS, smollm_path, str(BUDGET)],
        check=True,
        timeout=100,
        env=environment(),
    )


@pytest.mark.parametrize(("name", "most_mib"), [("smollm_path", 100), ("gemma_path", 160)])
def test_what_is_not_in_the_arena_is_little(
    name: str, most_mib: int, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(name)
    sizes = ("--ram", "600MiB", "--ctx", 128)
    work = ("--prompt-tokens", 2, "--new-tokens", 4)
    parts = json.loads(flexinfer("plan", path, *sizes, *work, "--json").stdout)["parts"]
    arena = sum(parts.values()) - parts["interpreter"] - parts["tokenizer"]
    run = json.loads(
        flexinfer("run", path, "Hi", "--raw", *sizes, "--max-tokens", 4, "--json").stdout
    )
    assert run["peak_rss_bytes"] - arena <= most_mib << 20


def test_a_base_model_does_not_chat(gemma_path: Path) -> None:
    done = flexinfer("run", gemma_path, "Hello")
    assert done.returncode == 2 and "--raw" in done.stderr.splitlines()[1]


def test_plan_maps_every_byte(smollm_path: Path) -> None:
    sizes = ("--ram", "140MiB", "--prompt-tokens", 100, "--new-tokens", 20)
    done = flexinfer("plan", smollm_path, *sizes, "--json")
    plan = json.loads(done.stdout)
    assert done.stderr == ""
    spent = sum(plan["parts"].values()) + plan["unused_bytes"] + plan["margin_bytes"]
    assert spent == plan["budget_bytes"] == 140 << 20
    assert plan["unused_bytes"] < 64 << 10
    assert plan["context_tokens"] == 120 and plan["prompt_sweeps"] == 1
    assert [layer["layer"] for layer in plan["layers"]] == [*range(30), -1]
    locked = sum(layer["locked_bytes"] for layer in plan["layers"])
    streamed = sum(layer["streamed_bytes"] for layer in plan["layers"])
    assert locked == plan["locked_bytes"]
    gaps = plan["streamed_bytes_per_sweep"] - streamed  # norms between matrices, read along
    assert 0 <= gaps < streamed / 100
    assert 0 < plan["bound_tpot_s"] <= plan["predicted_tpot_s"]
    text = flexinfer("plan", smollm_path, *sizes).stdout
    for words in ("budget 140 MiB of", "streamed per sweep", "ffn_down", "kv cache", "by the disk"):
        assert words in text


@pytest.mark.parametrize(
    ("kv_type", "head_bytes"), [("f16", 64 * 2), ("f32", 64 * 4), ("q8_0", 2 * 34)]
)
def test_the_context_of_a_chat_is_a_quarter_of_the_budget_at_most(
    kv_type: str, head_bytes: int, smollm_path: Path
) -> None:
    done = flexinfer("plan", smollm_path, "--ram", "180MiB", "--kv-type", kv_type, "--json")
    plan = json.loads(done.stdout)
    assert plan["kv_type"] == kv_type
    token_bytes = 2 * 30 * 3 * head_bytes  # K and V, layers, heads
    assert plan["context_tokens"] == (45 << 20) // token_bytes // 64 * 64
    assert plan["parts"]["kv_cache"] == plan["context_tokens"] * token_bytes


def test_a_q8_0_cache_keeps_the_budget_and_the_text(smollm_path: Path) -> None:
    argv = ("run", smollm_path, "Hi", "--max-tokens", 12, "--kv-type", "q8_0", "--json")
    tight, wide = (json.loads(flexinfer(*argv, "--ram", n).stdout) for n in (BUDGET, "280MiB"))
    assert tight["token_ids"] == wide["token_ids"]
    assert tight["streamed_bytes_per_sweep"] > 0 == wide["streamed_bytes_per_sweep"]
    assert tight["peak_rss_bytes"] <= BUDGET
    sizes = ("--prompt-tokens", 500, "--new-tokens", 140, "--ram", "280MiB", "--json")
    kv_bytes = {
        kv_type: json.loads(flexinfer("plan", smollm_path, "--kv-type", kv_type, *sizes).stdout)[
            "parts"
        ]["kv_cache"]
        for kv_type in ("f16", "q8_0")
    }
    assert kv_bytes["q8_0"] * 32 == kv_bytes["f16"] * 17


def test_no_new_tokens_are_no_work(smollm_path: Path) -> None:
    argv = ("run", smollm_path, "Hi", "--ram", BUDGET, "--max-tokens", 0, "--json")
    run = json.loads(flexinfer(*argv).stdout)
    assert (run["text"], run["token_ids"], run["finish_reason"]) == ("", [], "length")
    assert (run["sweeps"], run["tpot_s"]) == (0, None)


def test_plan_says_when_nothing_streams_and_when_nothing_is_pinned(smollm_path: Path) -> None:
    assert "nothing streams" in flexinfer("plan", smollm_path, "--ram", "400MiB").stdout


@pytest.mark.parametrize("argv", [["--prompt-tokens", "9000"], ["--new-tokens", "0"]])
def test_plan_refuses_a_workload_that_cannot_be(argv: list[str], smollm_path: Path) -> None:
    done = flexinfer("plan", smollm_path, *argv)
    assert done.returncode == 2 and argv[1] in done.stderr


def test_bench_measures_each_budget_in_its_own_process(smollm_path: Path) -> None:
    sizes = ("--prompt-tokens", 24, "--new-tokens", 4, "--repeat", 2)
    budgets = ("--ram", "280MiB", "--ram", "120MiB")
    done = flexinfer("bench", smollm_path, *budgets, *sizes, "--no-prefetch", "--json")
    assert done.returncode == 0, done.stderr
    large, small = json.loads(done.stdout)["runs"]
    for run in (large, small):
        assert set(NAMES) - set(run) == {"text", "token_ids", "finish_reason"}
        assert run["prompt_tokens"] == 24 and run["new_tokens"] == 4 and run["sweeps"] == 4
        assert run["policy"] == "rows" and run["prefetch"] is False
        assert run["peak_rss_bytes"] <= run["budget_bytes"]
        for name in ("prompt_tokens_per_s", "decode_tokens_per_s"):
            assert len(run[f"{name}_all"]) == 2
            assert run[name] == pytest.approx(sum(run[f"{name}_all"]) / 2)
    assert large["streamed_bytes_per_sweep"] == 0 < small["streamed_bytes_per_sweep"]
    assert small["peak_rss_bytes"] < large["peak_rss_bytes"]
    read = small["locked_bytes"] + small["sweeps"] * small["streamed_bytes_per_sweep"]
    assert small["disk_read_bytes"] == pytest.approx(read, rel=0.05)


def test_ring_and_reads_at_once_are_told_as_asked_for(smollm_path: Path, tmp_path: Path) -> None:
    ring = ("--prefetch-window", 7, "--io-threads", 3)
    plan = ("plan", smollm_path, "--ram", "120MiB", "--prompt-tokens", 8, *ring)
    told = json.loads(flexinfer(*plan, "--json").stdout)
    assert (told["ring_slots"], told["io_threads"]) == (7, 3)
    assert told["parts"]["ring"] == 7 * told["slot_bytes"]
    assert list(told["disk_bytes_per_s_at_depth"]) == ["3"]
    assert told["disk_latency_s"] > 0 and told["disk_pause_s"] >= 0
    assert "ring of 7 slots of 1.45 MiB, 3 reads at once;" in flexinfer(*plan).stdout
    sizes = ("--prompt-tokens", 8, "--new-tokens", 2, "--repeat", 1, "--json")
    bench = flexinfer("bench", smollm_path, "--ram", "110MiB", "--ram", "120MiB", *sizes, *ring)
    for run in json.loads(bench.stdout)["runs"]:
        assert (run["ring_slots"], run["io_threads"]) == (7, 3)
        assert run["peak_rss_bytes"] <= run["budget_bytes"]
    text = tmp_path / "text.txt"
    text.write_text("The cat sat on the mat. " * 12)
    scored = flexinfer("perplexity", smollm_path, text, "--ctx", 32, "--ram", "120MiB", "-v", *ring)
    assert scored.returncode == 0 and "ring of 7 slots" in scored.stderr
    ran = flexinfer("run", smollm_path, "Hi", "--max-tokens", 2, "--ram", "120MiB", "-v", *ring)
    assert ran.returncode == 0 and "3 reads at once" in ran.stderr


def test_plan_tells_what_was_chosen(smollm_path: Path) -> None:
    told = json.loads(flexinfer("plan", smollm_path, "--ram", "120MiB", "--json").stdout)
    assert 4 <= told["ring_slots"] <= 32 and told["io_threads"] in (1, 2, 4)
    assert list(told["disk_bytes_per_s_at_depth"]) == ["1", "2", "4"]


def test_bench_tabulates_for_people(smollm_path: Path) -> None:
    sizes = ("--prompt-tokens", 8, "--new-tokens", 2, "--repeat", 1)
    done = flexinfer("bench", smollm_path, "--ram", "120MiB", *sizes)
    head, row = done.stdout.splitlines()
    assert "decode/s (predicted)" in head and row.split()[:2] == ["120", "MiB"]


def test_perplexity_with_layers_on_a_device(smollm_path: Path) -> None:
    """With activations as they are it is that of the CPU, which rounds them, within 0.5 %."""
    argv = (
        "perplexity",
        smollm_path,
        Path(__file__).parent.parent / "LICENSE",
        "--chunks",
        4,
        "--json",
    )
    device = ("--device", "cpu", "--vram", "200MiB", "--strategy", "split:9")
    host, both = (json.loads(flexinfer(*argv, *more).stdout) for more in ((), device))
    assert both["perplexity"] != host["perplexity"]
    assert both["perplexity"] == pytest.approx(host["perplexity"], rel=5e-3)
    refused = flexinfer(*argv, *device, "--decode-strategy", "cpu")
    assert refused.returncode == 2 and "--decode-strategy cannot take effect" in refused.stderr


def test_perplexity_of_a_text(smollm_path: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The cat sat on the mat. The dog lay by the door. " * 12)
    argv = ("perplexity", smollm_path, text, "--ctx", 64, "--ram", "140MiB")
    done = flexinfer(*argv, "--chunks", 2, "--json")
    assert done.returncode == 0, done.stderr
    score = json.loads(done.stdout)
    assert set(score) == {"perplexity", "chunks", "ctx", "scored_tokens", "seconds"}
    assert (score["chunks"], score["ctx"], score["scored_tokens"]) == (2, 64, 62)
    assert 1 < score["perplexity"] < 10 and math.isfinite(score["seconds"])
    assert "locked" in done.stderr
    short = flexinfer("perplexity", smollm_path, text, "--ctx", 4096)
    assert short.returncode == 2 and "less than one chunk of 4096" in short.stderr
