"""The same greedy tokens at every budget, thread count and prefetch: the whole matrix, for real.

    python benchmarks/same_tokens.py MODEL.gguf [--budgets 10] [--threads 1 2 3] [--new-tokens 32]

Each run is a process of its own, from the least budget to one that everything fits in. Exit code 1
where any text differs.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

from machine import machine

PROMPT = "The quick brown fox jumps over the lazy dog. In 1999 the capital of France was"


def run(path: Path, ram: int, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flexinfer", "run", str(path), PROMPT, "--raw", "--json"]
    command += ["--quiet", f"--ram={ram}", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def least_budget(path: Path, *options: str) -> int:
    """The minimum that a refusal names, and 4 MiB: the interpreter's size varies a little."""
    refusal = run(path, 1 << 20, *options).stderr
    match = re.search(r"minimum of .*?\((\d+) bytes\)", refusal)
    assert match, refusal
    return int(match[1]) + (4 << 20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--budgets", type=int, default=10)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--new-tokens", type=int, default=32)
    args = parser.parse_args()
    new = f"--max-tokens={args.new_tokens}"
    least = least_budget(args.model, new)
    most = least + int(args.model.stat().st_size * 1.1)
    texts: dict[str, int] = {}
    over = 0
    for step in range(args.budgets):
        ram = least + (most - least) * step // (args.budgets - 1)
        for threads in args.threads:
            for prefetch in ([], ["--no-prefetch"]):
                done = run(args.model, ram, new, f"--threads={threads}", *prefetch)
                if done.returncode:
                    sys.exit(done.stderr)
                result = json.loads(done.stdout)
                texts[str(result["token_ids"])] = texts.get(str(result["token_ids"]), 0) + 1
                over += result["peak_rss_bytes"] > ram
        print(
            f"{ram / 2**20:6.0f} MiB: {result['locked_bytes'] / 2**20:5.0f} MiB locked, "
            f"peak {result['peak_rss_bytes'] / 2**20:5.0f} MiB, texts so far {len(texts)}"
        )
    print(
        f"{args.model.name}: {sum(texts.values())} runs, {len(texts)} text(s), {over} over budget"
    )
    print(machine())
    sys.exit(len(texts) != 1 or over > 0)


if __name__ == "__main__":
    main()
