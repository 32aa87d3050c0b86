"""Transfers beside computing on an emulated accelerator whose link gives just what it computes.

    python benchmarks/overlap.py [--rate 250] [--repeat 3] [--json FILE]

No figure is of a real accelerator. Its memory and its link give the same bytes/s, so that a layer
of one token computes for as long as its weights take over the link. Time per token with all layers
locked there (computing alone), with all of them streamed (their cache kept there, or by the host,
so that it crosses the link too), and streamed without prefetching; the link's own time follows from
its rate. With perfect overlap streaming costs the larger of the two.
"""

import argparse
import json
import tempfile
from pathlib import Path
from statistics import median

import torch
from machine import machine
from strategies import FIXED, Bench, Case, made_model

from flexinfer.executor.model import open_model


def tpot_s(bench: Bench, case: Case, strategy: str, repeat: int) -> float:
    planned = bench.plan(case, FIXED[strategy])
    return median(bench.run(case, planned)["tpot_s"] for _ in range(repeat))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rate", type=int, default=250, help="MB/s of memory and link")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        model = open_model(made_model(Path(folder)))
        ahead = Bench(model, args.rate, Path(folder), memory=args.rate)
        serial = Bench(model, args.rate, Path(folder), memory=args.rate, prefetch=False)
        ahead.look()
        serial.look()
        locked, kept, tight = (Case(args.rate, 8, 24, share) for share in (1.2, 0.4, 0.0))
        computing_s = tpot_s(ahead, locked, "flexgen-opt", args.repeat)
        streamed_s = tpot_s(ahead, kept, "flexgen", args.repeat)
        tight_s = tpot_s(ahead, tight, "flexgen", args.repeat)
        serial_s = tpot_s(serial, kept, "flexgen", args.repeat)
        link = ahead.machine.hardware.device
        assert link is not None
        weights = [m.tensor.size_bytes for m in model.weights.matrices]
        link_s = link.to_device.seconds(sum(weights), len(weights))
    larger_s = max(computing_s, link_s)
    facts = {
        "machine": machine(),
        "emulated": True,
        "layers": len(model.spec.layers),
        "computing_s": computing_s,
        "link_s": link_s,
        "streamed_s": streamed_s,
        "cache_on_host_s": tight_s,
        "serial_s": serial_s,
        "over_the_larger": streamed_s / larger_s,
        "cache_on_host_over_the_larger": tight_s / larger_s,
        "serial_over_the_larger": serial_s / larger_s,
    }
    print(json.dumps(facts, indent=1))
    if args.json:
        args.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
