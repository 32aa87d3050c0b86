"""Changing prompts for a long time at a tight budget: no error, no growth, never above the budget.

    python benchmarks/soak.py MODEL.gguf --ram 110MiB [--minutes 30] [--ctx 512] [--seed 0]

Prompts of any length that fits, greedy and sampled, streams closed midway, chats, prompts that are
too long and must be refused. The same greedy prompt comes back again and again and must give the
same tokens. Exit code 1 where memory grew by more than 1 MiB after the first third, where the
kernel's peak passed the budget, or where tokens differed.
"""

import argparse
import random
import sys
import time
from pathlib import Path

from machine import machine

from flexinfer import LLM, SamplingParams
from flexinfer.errors import PromptError
from flexinfer.memory.budget import peak_resident_bytes, resident_bytes
from flexinfer.units import MiB, parse_bytes

WORDS = Path(__file__).read_text().split()
REFERENCE = "The quick brown fox jumps over the lazy dog."
GROWTH_BYTES = MiB


def request(llm: LLM, rng: random.Random, context_tokens: int) -> str:
    """One request of a random kind; returns the kind."""
    kind = rng.choice(["greedy", "sampled", "sampled", "closed", "chat", "too long"])
    prompt = " ".join(rng.choices(WORDS, k=rng.randint(1, context_tokens // 8)))
    new_tokens = rng.randint(1, context_tokens // 8)
    params = SamplingParams(max_tokens=new_tokens)
    if kind == "sampled":
        params = SamplingParams(
            max_tokens=new_tokens, temperature=1.2, top_p=0.9, seed=rng.randrange(1 << 30)
        )
    if kind == "closed":
        stream = llm.stream(prompt, params)
        next(stream)
        stream.close()
    elif kind == "chat":
        llm.chat([{"role": "user", "content": prompt[:200]}], params)
    elif kind == "too long":
        try:
            llm.generate([1] * (context_tokens + 1))
        except PromptError:
            return kind
        raise AssertionError("a prompt beyond the context was taken")
    else:
        llm.generate(prompt, params)
    return kind


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--ram", type=parse_bytes, required=True)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--ctx", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    resident: list[int] = []
    counts: dict[str, int] = {}
    different = 0
    with LLM(args.model, args.ram, args.ctx) as llm:
        print(f"{args.model.name}, --ram {args.ram / MiB:.0f} MiB; {machine()}")
        expected = llm.generate(REFERENCE, SamplingParams(max_tokens=24)).token_ids
        began = time.monotonic()
        minute = 0.0
        while (passed := (time.monotonic() - began) / 60) < args.minutes:
            kind = request(llm, rng, args.ctx)
            counts[kind] = counts.get(kind, 0) + 1
            again = llm.generate(REFERENCE, SamplingParams(max_tokens=24)).token_ids
            different += again != expected
            resident.append(resident_bytes())
            if passed >= minute:
                minute += 1
                print(f"{passed:5.1f} min  {len(resident):6} requests  ", end="")
                print(f"{resident[-1] / MiB:8.2f} MiB", flush=True)
    third = max(1, len(resident) // 3)
    growth = max(resident[third:], default=0) - max(resident[:third])
    peak = peak_resident_bytes()
    print(", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())))
    print(
        f"peak {peak / MiB:.1f} of {args.ram / MiB:.1f} MiB; growth after the first third "
        f"{growth / MiB:.2f} MiB; {different} of {len(resident)} references differed"
    )
    sys.exit(peak > args.ram or growth > GROWTH_BYTES or different > 0)


if __name__ == "__main__":
    main()
