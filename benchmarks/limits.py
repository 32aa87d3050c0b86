"""A model larger than its memory: FlexInfer and llama.cpp (mmap) in the same memory control group,
and the bound.

    python benchmarks/limits.py MODEL.gguf [--percent 25 50 75] [--llamacpp PYTHON] [--json]

For each limit L (a percentage of the file + 0.7 GB) and `--ram L`: decode with and without
prefetch, the peak of memory, what was read; the bound of a sweep is the longer of (weights -
embedding - (L - 0.3 GB)) / bare direct bandwidth and of computing in memory, both measured in this
run. `--llamacpp` names an interpreter with llama-cpp-python (see llamacpp.py). Needs root.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from machine import LLAMACPP, bare_bandwidth, forget, machine, memory_group, run_json

from flexinfer.executor.model import open_model

OTHER_BYTES = 0.3e9  # what the bound grants for everything that is not a weight


def bench(path: Path, *options: str, group: Path | None = None) -> dict[str, Any]:
    command = [sys.executable, "-m", "flexinfer", "bench", str(path), "--json", "--quiet", *options]
    return run_json(command, group)["runs"][0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--percent", type=int, nargs="+", default=[25, 50, 75])
    parser.add_argument("--new-tokens", type=int, default=16)
    parser.add_argument("--llamacpp", metavar="PYTHON")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    path: Path = args.model
    file_bytes = path.stat().st_size
    model = open_model(path)
    weight_bytes = sum(m.tensor.size_bytes for m in model.weights.matrices)
    workload = ("--prompt-tokens=16", f"--new-tokens={args.new_tokens}", "--repeat=1")

    in_memory = bench(path, *workload)
    assert in_memory["streamed_bytes_per_sweep"] == 0
    compute_s = in_memory["tpot_s"]
    rows = []
    for percent in args.percent:
        limit = int(file_bytes * percent / 100 + 0.7e9)
        forget(path)
        with memory_group(limit) as group:
            ours = bench(path, f"--ram={limit}", *workload, group=group)
        serial = bench(path, f"--ram={limit}", "--no-prefetch", *workload)
        disk = bare_bandwidth(path, 2 << 30)
        io_s = max(0, weight_bytes - (limit - OTHER_BYTES)) / disk
        sweeps = ours["sweeps"] + 1
        allowed = 1.05 * (ours["locked_bytes"] + sweeps * ours["streamed_bytes_per_sweep"])
        streamed_s = ours["streamed_bytes_per_sweep"] / disk
        row = {
            "percent": percent,
            "limit_bytes": limit,
            "peak_rss_bytes": ours["peak_rss_bytes"],
            "disk_read_share": ours["disk_read_bytes"] / (allowed + 150e6),
            "decode_tokens_per_s": ours["decode_tokens_per_s"],
            "predicted_tokens_per_s": 1 / ours["predicted_tpot_s"],
            "disk_bytes_per_s": disk,
            "bound_share": max(io_s, compute_s) / ours["tpot_s"],
            "overlap": (serial["tpot_s"] - ours["tpot_s"]) / min(compute_s, streamed_s),
        }
        if args.llamacpp:
            forget(path)
            command = [args.llamacpp, LLAMACPP, str(path), "--new-tokens=4", "--repeat=1"]
            with memory_group(limit) as group:
                theirs = run_json([*command, "--no-repack"], group)
            row["llamacpp_tokens_per_s"] = theirs["median_tokens_per_s"]
            row["ratio"] = row["decode_tokens_per_s"] / row["llamacpp_tokens_per_s"]
        rows.append(row)
    if args.json:
        print(json.dumps({"machine": machine(), "in_memory_tpot_s": compute_s, "rows": rows}))
        return
    print(f"{path.name}; {machine()}; in memory {1 / compute_s:.2f} tokens/s")
    print(
        "  limit GB  peak GB  disk GB/s  read/allowed  tokens/s  predicted  of bound  overlap"
        "  llama.cpp  ratio"
    )
    for row in rows:
        print(
            f"{row['limit_bytes'] / 1e9:10.2f} {row['peak_rss_bytes'] / 1e9:8.2f} "
            f"{row['disk_bytes_per_s'] / 1e9:10.2f} {row['disk_read_share']:13.2f} "
            f"{row['decode_tokens_per_s']:9.2f} {row['predicted_tokens_per_s']:10.2f} "
            f"{row['bound_share']:9.2f} {row['overlap']:8.2f} "
            f"{row.get('llamacpp_tokens_per_s', float('nan')):10.3f} "
            f"{row.get('ratio', float('nan')):6.1f}"
        )


if __name__ == "__main__":
    main()
