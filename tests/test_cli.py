"""The command line without a model in memory: options, errors, `info`, and what needs no plan."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli_tools import environment, flexinfer
from flexinfer import LLM, SamplingParams, UnsupportedError, arguments
from flexinfer.arguments import parser
from flexinfer.cli import main
from flexinfer.commands.run import SAMPLING
from flexinfer.errors import OptionError
from flexinfer.formats.quants import BLOCK_TYPES
from flexinfer.planner.sizes import KV_TYPES
from flexinfer.units import format_bytes
from gguf_bytes import STRING, entry, gguf, text
from tiny_llama import DIM, FFN, tiny_llama

ABLE = ", ".join(t.name for t in BLOCK_TYPES.values() if t.has_kernel)
BEYOND = [t.name for t in BLOCK_TYPES.values() if not t.has_kernel]


def complain(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[str, str]:
    """The error and the hint of a command that is the user's to mend."""
    assert main([str(arg) for arg in argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    error, hint = err.splitlines()
    assert error.startswith("error: ") and hint.startswith("hint: ")
    return error, hint


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["run", "demo", "hi", "--rma", "1GiB"], "--rma"),
        (["plan", "demo", "--pol", "rows"], "--pol"),
        (["rum", "demo"], "rum"),
        (["run"], "MODEL"),
        (["run", "demo", "hi", "--ram", "much"], "--ram: not a size: 'much'"),
        (["run", "demo", "hi", "--max-tokens", "many"], "--max-tokens"),
        (["run", "demo", "hi", "--max-tokens", "-1"], "--max-tokens is -1"),
        (["run", "demo", "hi", "--temperature", "nan"], "--temperature: not a number: 'nan'"),
        (["run", "demo", "hi", "--top-p", "0.9"], "--top-p cannot take effect at temperature 0"),
        (["run", "demo", "hi", "--temperature", "1", "--top-p", "1.5"], "--top-p is 1.5"),
        (["run", "demo", "hi", "--seed", "3"], "--seed cannot take effect at temperature 0"),
        (["run", "demo", "hi", "--temperature", "1", "--seed", "-3"], "--seed is -3"),
        (["run", "demo", "hi", "--stop", ""], "--stop is ['']"),
        (["run", "demo", "hi", "--raw", "--system", "be brief"], "--system"),
        (["run", "demo", "hi", "--quiet", "-v"], "--quiet"),
        (["bench", "demo", "--repeat", "0"], "--repeat is 0"),
        (["run", "demo", "hi", "--vram", "6GiB"], "--vram"),  # nothing to offload to yet
        (["info", "no such file.gguf"], "no such file.gguf"),
        (["perplexity", "demo", "/dev/zero"], "/dev/zero: is a device"),
    ],
)
def test_a_mistake_is_named_in_two_lines(
    argv: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error, _ = complain(capsys, *argv)
    assert named in error


def options(wanted: tuple[object, ...]) -> list[tuple[str, str]]:
    """Every command's options whose values are parsed by one of these."""
    commands = next(a for a in parser()._actions if isinstance(a.choices, dict)).choices
    return [
        (command, action.option_strings[0])
        for command, known in commands.items()
        for action in known._actions
        if action.type in wanted
    ]


@pytest.mark.parametrize(("command", "option"), options((arguments._whole, arguments._number)))
@pytest.mark.parametrize("value", ["٤", "1_0", " 7", "0x1f", "inf", "", "9" * 5000])
def test_a_number_is_plain_digits(
    command: str, option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error, _ = complain(capsys, command, "demo", f"{option}={value}")
    assert f"argument {option}: not a " in error and "; write for example" in error


@pytest.mark.parametrize(("command", "option"), options((arguments._size,)))
@pytest.mark.parametrize("value", ["٤GiB", "4_0MiB", "4\u2003GiB", "-1", "1e9", ""])
def test_a_size_is_plain_digits_and_a_unit(
    command: str, option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error, _ = complain(capsys, command, "demo", f"{option}={value}")
    assert f"argument {option}: not a size: " in error and "8GiB" in error


@pytest.mark.parametrize("name", sorted(SAMPLING))
def test_a_sampling_parameter_is_called_what_was_typed(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    option, value = f"--{name.replace('_', '-')}", "" if name == "stop" else "-99"
    error, hint = complain(capsys, "run", "demo", "hi", f"{option}={value}")
    assert error.startswith(f"error: {option} is ") and "flexinfer run --help" in hint
    with pytest.raises(OptionError, match=f"^{name} is ") as refused:
        SamplingParams(**{name: ("",) if name == "stop" else -99})
    assert refused.value.hint == "see SamplingParams"


def test_the_demo_model_is_made_by_make_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLEXINFER_MODELS", str(tmp_path))
    error, hint = complain(capsys, "info", "demo")
    assert str(tmp_path) in error and "`make demo`" in hint


def test_the_demo_model_is_found(
    smollm_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLEXINFER_MODELS", str(smollm_path.parent))
    assert main(["info", "demo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["path"] == str(smollm_path)


def test_info_tells_a_model_from_its_header(
    gemma_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["info", str(gemma_path), "--json"]) == 0
    out, err = capsys.readouterr()
    facts = json.loads(out)
    assert err == ""
    assert facts["architecture"] == "gemma3" and facts["layers"] == 18
    assert facts["vocabulary"] == 262144 and facts["window_tokens"] == 512
    assert facts["kv_bytes_per_token"] == 18 * 2 * 256 * 2
    assert facts["file_bytes"] == gemma_path.stat().st_size
    assert set(facts["bytes_by_type"]) == {"Q8_0", "Q5_0", "Q4_K", "Q6_K", "F32"}
    assert facts["runs"] is True and facts["chat_template"] is False
    assert main(["info", str(gemma_path)]) == 0
    assert "268.1 million" in capsys.readouterr().out


def test_help_names_every_type_of_the_cache(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    text = capsys.readouterr().out.split("--kv-type", 2)[2].split("--policy")[0]
    assert all(name in text for name in KV_TYPES)


def test_info_imports_neither_numpy_nor_the_kernels(smollm_path: Path) -> None:
    code = (
        "import sys; from flexinfer.cli import main; main(['info', sys.argv[1]]);"
        "print({'numpy', 'tokenizers', 'flexinfer._kernels'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, smollm_path],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=environment(),
    )
    assert done.stderr.strip() == "set()"


@pytest.mark.parametrize("command", ["info", "plan", "run", "bench", "perplexity"])
@pytest.mark.parametrize("beyond", BEYOND)
def test_a_type_without_a_kernel_is_named_by_every_command(
    beyond: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Alike: the type, the tensor, what to do; `info` shows the file all the same."""
    block_type = next(t for t in BLOCK_TYPES.values() if t.name == beyond)
    path = tmp_path / "beyond.gguf"
    path.write_bytes(tiny_llama(types={"blk.0.ffn_down.weight": block_type.ggml_id}))
    argv = {"run": ["hi"], "perplexity": [str(path)], "bench": ["--json"]}.get(command, [])
    assert main([command, str(path), *argv]) == 2
    out, err = capsys.readouterr()
    assert err.splitlines() == [
        f"error: {path}: tensors of a type that FlexInfer cannot compute: "
        f"{beyond} of blk.0.ffn_down.weight",
        f"hint: use a file quantised as one of {ABLE}",
    ]
    if command == "info":
        size = format_bytes(DIM * block_type.row_bytes(FFN))
        assert "can be run     no" in out and f"{beyond} {size}" in out


@pytest.mark.parametrize("name", ["token_embd.weight", "output_norm.weight"])
def test_a_type_without_a_kernel_is_named_wherever_it_lies(name: str, tmp_path: Path) -> None:
    """In an embedding that is the head too, in a norm; by the Python class as well."""
    path = tmp_path / "beyond.gguf"
    for block_type in BLOCK_TYPES.values():
        if block_type.name in BEYOND and DIM % block_type.block_values == 0:
            path.write_bytes(tiny_llama(types={name: block_type.ggml_id}))
            with pytest.raises(UnsupportedError, match=f"compute: {block_type.name} of {name}$"):
                LLM(path)


def test_a_name_in_a_file_cannot_command_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "name.gguf"
    path.write_bytes(gguf([entry("general.name", STRING, text("\x1b[2Jevil"))]))
    assert main(["info", str(path)]) == 2
    assert "\x1b" not in capsys.readouterr().out


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for argv, expected in (
        (["--version"], "flexinfer 0.1.0"),
        (["--help"], "perplexity"),
        (["run", "--help"], "default: 0, always the likeliest token"),
    ):
        with pytest.raises(SystemExit) as left:
            main(argv)
        out, err = capsys.readouterr()
        assert left.value.code == 0 and expected in out and err == ""
    assert main([]) == 0
    assert "perplexity" in capsys.readouterr().out


def test_a_fault_of_ours_has_a_traceback_only_when_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(path: object) -> None:
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr("flexinfer.commands.info.open_checkpoint", fail)
    assert main(["info", "x.gguf"]) == 1
    err = capsys.readouterr().err
    assert err.splitlines()[0] == "error: internal: ZeroDivisionError: of ours"
    assert "Traceback" not in err
    assert main(["info", "x.gguf", "-v"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_reader_that_leaves_is_no_error(smollm_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "flexinfer", "info", smollm_path],
            stdout=closed,
            stderr=subprocess.PIPE,
            check=False,
            timeout=60,
            env=environment(),
        )
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_bench_child_that_fails_is_reported_and_makes_the_exit_code(smollm_path: Path) -> None:
    done = flexinfer("bench", smollm_path, "--ram", "1MiB", "--json", "--quiet")
    (run,) = json.loads(done.stdout)["runs"]
    assert done.returncode == 2
    assert run["budget_bytes"] == 1 << 20 and "below the minimum" in run["error"]
    assert "error: --ram 1 MiB: a budget of 1 MiB" in done.stderr
