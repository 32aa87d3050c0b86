"""FlexInfer beside llama.cpp on one file, alternating in one run: decode, prefill, and the first
token under a memory limit.

    python benchmarks/vs_llamacpp.py MODEL.gguf --llamacpp PYTHON [--prompts 512 4096]
        [--new-tokens 64] [--rounds 5] [--threads 2] [--ways repacked file] [--limit-percent 25]
        [--json]

In memory, every round runs FlexInfer, then llama.cpp with its weights repacked and as in the file
(or only in --ways of these), each in a process of its own; the ratio is taken within a round, to
whichever of the two is faster over all rounds. --new-tokens 0 leaves out decode. --limit-percent N
adds the time to the first token of a prompt of 2,048 in a control group of N % of the file + 0.7
GB, `--ram` being as much, against llama.cpp on the mapped file in the same group, caches dropped
before each (needs root). PYTHON is an interpreter with llama-cpp-python (see llamacpp.py).
FlexInfer's figures hold sampling and text, llama.cpp's do not.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from machine import LLAMACPP, forget, machine, memory_group, run_json

DECODE_PROMPT_TOKENS = 16
LIMITED_PROMPT_TOKENS = 2048
WAYS = {"repacked": (), "file": ("--no-repack",)}  # of llama.cpp to hold the weights
Engine = Callable[[int, int], float]  # prompt tokens, new tokens (0: of the prompt); a rate


@dataclass(frozen=True, slots=True)
class Figure:
    """One quantity, round by round, by engine; more is better."""

    name: str
    unit: str
    flexinfer: tuple[float, ...]
    llamacpp: dict[str, tuple[float, ...]]

    @property
    def rival(self) -> str:
        """The faster of llama.cpp's ways."""
        return max(self.llamacpp, key=lambda way: median(self.llamacpp[way]))

    @property
    def ratios(self) -> list[float]:
        theirs = self.llamacpp[self.rival]
        return [a / b for a, b in zip(self.flexinfer, theirs, strict=True)]


class InMemory:
    """Rates of both engines on one file with all of it in memory."""

    def __init__(self, path: Path, python: str, threads: int, ways: Sequence[str]) -> None:
        self._ways = ways
        self._path = str(path)
        self._python = python
        self._threads = threads

    def flexinfer(self, prompt_tokens: int, new_tokens: int) -> float:
        command = [sys.executable, "-m", "flexinfer", "bench", self._path, "--json", "--quiet"]
        command += [f"--threads={self._threads}", "--repeat=1"]
        command += [f"--prompt-tokens={prompt_tokens}", f"--new-tokens={max(1, new_tokens)}"]
        run = run_json(command)["runs"][0]
        if run["streamed_bytes_per_sweep"]:
            sys.exit(f"{self._path} does not fit in memory here")
        return float(run["decode_tokens_per_s" if new_tokens else "prompt_tokens_per_s"])

    def llamacpp(self, *options: str) -> Engine:
        def rate(prompt_tokens: int, new_tokens: int) -> float:
            command = [self._python, LLAMACPP, self._path, f"--threads={self._threads}", *options]
            command += [f"--prompt-tokens={prompt_tokens}", f"--new-tokens={max(1, new_tokens)}"]
            run = run_json([*command, "--repeat=1"])
            return float(run["decode_tokens_per_s" if new_tokens else "prompt_tokens_per_s"][0])

        return rate

    def compare(self, name: str, prompt_tokens: int, new_tokens: int, rounds: int) -> Figure:
        """Alternating, `rounds` times."""
        engines: dict[str, Engine] = {"flexinfer": self.flexinfer}
        engines |= {way: self.llamacpp(*WAYS[way]) for way in self._ways}
        rates: dict[str, list[float]] = {engine: [] for engine in engines}
        for _ in range(rounds):
            for engine, rate in engines.items():
                rates[engine].append(rate(prompt_tokens, new_tokens))
        done = {engine: tuple(values) for engine, values in rates.items()}
        return Figure(name, "tokens/s", done.pop("flexinfer"), done)


def first_token_limited(path: Path, python: str, threads: int, percent: int, rounds: int) -> Figure:
    """First tokens per second of a long prompt, both engines in a group of the same limit."""
    limit = int(path.stat().st_size * percent / 100 + 0.7e9)
    tokens = f"--prompt-tokens={LIMITED_PROMPT_TOKENS}"
    common = [f"--threads={threads}", tokens, "--new-tokens=1", "--repeat=1"]
    ours = [sys.executable, "-m", "flexinfer", "bench", str(path), "--json", "--quiet"]
    theirs = [python, LLAMACPP, str(path), "--no-repack"]
    flexinfer, llamacpp = [], []
    for _ in range(rounds):
        forget(path)
        with memory_group(limit) as group:
            run = run_json([*ours, f"--ram={limit}", *common], group)["runs"][0]
        if run["sweeps"] != 1:
            print(f"FlexInfer took {run['sweeps']} sweeps", file=sys.stderr)
        flexinfer.append(1 / run["ttft_s"])
        forget(path)
        with memory_group(limit) as group:
            llamacpp.append(1 / run_json([*theirs, *common], group)["ttft_s"][0])
    name = f"first token of {LIMITED_PROMPT_TOKENS:,} at {percent} %"
    return Figure(name, "1/s", tuple(flexinfer), {"mapped": tuple(llamacpp)})


def figures(args: argparse.Namespace) -> Iterator[Figure]:
    both = InMemory(args.model, args.llamacpp, args.threads, args.ways)
    if args.new_tokens:
        yield both.compare("decode", DECODE_PROMPT_TOKENS, args.new_tokens, args.rounds)
    for tokens in args.prompts:
        yield both.compare(f"prefill of {tokens:,}", tokens, 0, args.rounds)
    if args.limit_percent:
        yield first_token_limited(
            args.model, args.llamacpp, args.threads, args.limit_percent, args.rounds
        )


def show(figure: Figure) -> str:
    ratios = figure.ratios
    ways = "  ".join(f"{way} {spread(values)}" for way, values in figure.llamacpp.items())
    return (
        f"{figure.name}: {median(ratios):.2f} times llama.cpp ({figure.rival}), "
        f"{min(ratios):.2f} to {max(ratios):.2f}\n"
        f"  {figure.unit}: FlexInfer {spread(figure.flexinfer)}  {ways}"
    )


def spread(values: Sequence[float]) -> str:
    return f"{median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--llamacpp", metavar="PYTHON", required=True)
    parser.add_argument("--prompts", type=int, nargs="*", default=[512, 4096])
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--limit-percent", type=int, metavar="N")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = []
    if not args.json:
        print(f"{args.model.name}; {machine()}; {args.threads} threads each", flush=True)
    for figure in figures(args):
        rows.append(asdict(figure) | {"rival": figure.rival, "ratios": figure.ratios})
        if not args.json:
            print(show(figure), flush=True)
    if args.json:
        print(json.dumps({"machine": machine(), "model": args.model.name, "figures": rows}))


if __name__ == "__main__":
    main()
