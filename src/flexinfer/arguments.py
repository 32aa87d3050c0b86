"""What each command takes on the command line."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

from flexinfer import __version__
from flexinfer.errors import OptionError
from flexinfer.units import parse_bytes, parse_number, parse_whole

T = TypeVar("T")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """argparse takes an absent PROMPT as final once it meets an option: here it may follow them."""
    known = parser()
    args, rest = known.parse_known_args(argv)
    if args.command == "run" and args.prompt is None and rest:
        marked = rest[0] == "--"
        candidate = rest[marked : marked + 1]
        if candidate and (marked or candidate[0] == "-" or not candidate[0].startswith("-")):
            args.prompt, rest = candidate[0], rest[marked + 1 :]
    if rest:
        known.error(f"unrecognized arguments: {' '.join(rest)}")
    return args


def _parsed(parse: Callable[[str], T], text: str) -> T:
    """argparse names the option where it is told of a fault in this way."""
    try:
        return parse(text)
    except OptionError as error:
        raise argparse.ArgumentTypeError(f"{error}; {error.hint}") from error


def _size(text: str) -> int:
    return _parsed(parse_bytes, text)


def _whole(text: str) -> int:
    return _parsed(parse_whole, text)


def _number(text: str) -> float:
    return _parsed(parse_number, text)


class _Parser(argparse.ArgumentParser):
    """Mistakes in the command line have the form of all other errors."""

    def error(self, message: str) -> NoReturn:
        raise OptionError(message, f"see `{self.prog} --help`")


def parser() -> argparse.ArgumentParser:
    """Of all commands."""
    whole = _Parser(
        prog="flexinfer",
        description="Run language models that do not fit in memory, under a RAM budget you state.",
        epilog="MODEL is a GGUF file, or `demo` after `make demo`. Sizes: 4GiB, 512MB, 1048576.",
        allow_abbrev=False,
    )
    whole.set_defaults(quiet=False, verbose=False)
    whole.add_argument("--version", action="version", version=f"flexinfer {__version__}")
    commands = whole.add_subparsers(dest="command", metavar="COMMAND", title="commands")

    def add(name: str, summary: str, *, optional: str = "") -> argparse.ArgumentParser:
        command: argparse.ArgumentParser = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            allow_abbrev=False,
        )
        command.add_argument(
            "model",
            metavar="MODEL",
            nargs="?" if optional else None,
            help="a GGUF file, or `demo`" + (f", {optional}" if optional else ""),
        )
        return command

    _add_run(add("run", "continue a prompt, or chat when there is none"))
    _add_plan(add("plan", "show what would be locked and streamed, and how fast that will be"))
    bench = add(
        "bench",
        "measure speed and memory at one or several budgets",
        optional="with --kernels only to try just its block types",
    )
    _add_bench(bench)
    _add_perplexity(
        add("perplexity", "score a text, in chunks of the context, each one's second half")
    )
    info = add("info", "show what a model file holds, and whether it can be run")
    _add_common(info)
    profile = add(
        "profile",
        "measure this machine, so that `plan` and `run` predict better",
        optional="to measure its disk too",
    )
    _add_threads(profile)
    _add_common(profile)
    doctor = add(
        "doctor",
        "show what this machine gives and what stands in the way",
        optional="to look at its place too",
    )
    _add_common(doctor)
    return whole


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "prompt",
        metavar="PROMPT",
        nargs="?",
        help="what to answer; `-` reads it from standard input, as does a pipe when it is absent",
    )
    parser.add_argument(
        "--max-tokens",
        type=_whole,
        metavar="N",
        help="of the answer, no more than the context holds; default: 512, or what it has left",
    )
    parser.add_argument(
        "--temperature",
        type=_number,
        metavar="T",
        help="default: 0, always the likeliest token, so that a text can be repeated",
    )
    parser.add_argument(
        "--top-k", type=_whole, metavar="K", help="sample among the K likeliest tokens"
    )
    parser.add_argument(
        "--top-p", type=_number, metavar="P", help="sample among the likeliest P of 1"
    )
    parser.add_argument(
        "--min-p", type=_number, metavar="P", help="leave out what is below P of the likeliest"
    )
    for name, meaning in (
        ("repetition", "divides the logits of all tokens so far; default: 1, none"),
        ("presence", "less for each token of the answer so far; default: 0"),
        ("frequency", "less for each time it stands there; default: 0"),
    ):
        parser.add_argument(f"--{name}-penalty", type=_number, metavar="X", help=meaning)
    parser.add_argument("--seed", type=_whole, metavar="S", help="of the sampling")
    parser.add_argument(
        "--stop", action="append", metavar="TEXT", help="end before TEXT (repeatable)"
    )
    parser.add_argument("--system", metavar="TEXT", help="the system message")
    parser.add_argument(
        "--raw", action="store_true", help="continue the prompt as it is, no template"
    )
    _add_budget(parser)
    _add_ctx(parser)
    _add_device(parser)
    _add_common(parser)


def _add_plan(parser: argparse.ArgumentParser) -> None:
    _add_tokens(parser)
    parser.add_argument(
        "--hardware",
        metavar="NAME|FILE",
        help="not this machine: icl-a100, spr-h100, laptop, desktop, mini-pc, or a TOML file",
    )
    parser.add_argument(
        "--batch", type=_whole, default=1, metavar="N", help="sequences at once, default: 1"
    )
    parser.add_argument(
        "--objective",
        choices=("latency", "ttft", "tpot", "throughput"),
        default="latency",
        help="what the strategy is chosen by, default: latency of the whole workload",
    )
    parser.add_argument(
        "--type", metavar="TYPE", help="of the weights of a model that has none, default: BF16"
    )
    parser.add_argument(
        "--sweep", action="store_true", help="every budget from the least to the whole model"
    )
    parser.add_argument(
        "--target-tokens-per-s", type=_number, metavar="X", help="say what --ram that takes"
    )
    parser.add_argument(
        "--plot", type=Path, metavar="F", help="draw the memory, or the sweep: F.svg or F.png"
    )
    parser.add_argument(
        "--measured", type=Path, metavar="F", help="points for the drawn sweep: `bench --json`"
    )
    _add_budget(parser)
    _add_ctx(parser)
    _add_device(
        parser, "; with --hardware: flexinfer (chosen), flexgen, flexgen-opt, splitgen, cpu-only"
    )
    _add_common(parser)


def _add_bench(parser: argparse.ArgumentParser) -> None:
    _add_tokens(parser)
    parser.add_argument("--repeat", type=_whole, default=3, metavar="N", help="default: 3")
    parser.add_argument(
        "--kernels",
        action="store_true",
        help="measure the products of each block type instead, beside what the machine gives",
    )
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    _add_budget(parser, several=True)
    _add_device(parser)
    _add_common(parser)


def _add_perplexity(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a text file")
    parser.add_argument(
        "--ctx", type=_whole, default=512, metavar="N", help="of a chunk, default: 512"
    )
    parser.add_argument("--chunks", type=_whole, metavar="N", help="only the first N")
    _add_budget(parser)
    _add_device(parser)
    _add_common(parser)


def _add_tokens(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompt-tokens", type=_whole, metavar="N", help="length of the prompt")
    parser.add_argument("--new-tokens", type=_whole, metavar="N", help="length of the answer")


def _add_ctx(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ctx",
        type=_whole,
        metavar="N",
        help="tokens of context to reserve; default: what the work needs, in a chat up to 4096",
    )


def _add_budget(parser: argparse.ArgumentParser, several: bool = False) -> None:
    parser.add_argument(
        "--ram",
        type=_size,
        action="append" if several else "store",
        metavar="SIZE",
        help="the most memory the process may take; default: what the machine can spare"
        + (" (repeatable)" if several else ""),
    )
    _add_threads(parser)
    parser.add_argument(
        "--kv-type",
        default="f16",
        metavar="TYPE",
        help="of the KV cache: f16, f32, or q8_0, which takes about half of f16; default: f16",
    )
    parser.add_argument(
        "--policy", default="rows", metavar="NAME", help="what to lock; default: rows"
    )
    parser.add_argument(
        "--no-prefetch", dest="prefetch", action="store_false", help="read only when needed"
    )
    parser.add_argument(
        "--prefetch-window",
        type=_whole,
        metavar="N",
        help="reads of up to 4 MiB that are in use, under way or ahead; default: what pays",
    )
    parser.add_argument(
        "--io-threads", type=_whole, metavar="N", help="reads under way at once; default: what pays"
    )
    parser.add_argument(
        "--force", action="store_true", help="take a --ram that is more than what is available"
    )


def _add_device(parser: argparse.ArgumentParser, more: str = "") -> None:
    """`more` is said of --strategy."""
    parser.add_argument(
        "--device",
        metavar="NAME",
        help="an accelerator: cuda, cuda:1; cpu as a stand-in, or an emulated one: emulated:small, "
        "emulated:MACHINE, emulated:MACHINE@SCALE, a machine being what plan --hardware takes",
    )
    parser.add_argument(
        "--vram",
        type=_size,
        metavar="SIZE",
        help="the most of its memory to take; default: what is free",
    )
    known = "cpu, gpu-offload, split:M"
    whole = f"auto (the default), {known}, flexgen, flexgen-opt, splitgen"
    parser.add_argument("--strategy", metavar="NAME", help=f"what it computes: {whole}{more}")
    for phase in ("prefill", "decode"):
        parser.add_argument(
            f"--{phase}-strategy", metavar="NAME", help=f"in this phase alone: {known}"
        )


def _add_threads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--threads", type=_whole, metavar="N", help="default: the processors available"
    )


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="say more; tracebacks of faults"
    )
    parser.add_argument("--quiet", action="store_true", help="say nothing but errors")
