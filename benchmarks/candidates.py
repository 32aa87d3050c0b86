"""What is compared under one memory limit, and one measurement of it: each a process of its own in
a memory control group, a bare read of the disk right before and after.
"""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine import LLAMACPP, RunFailed, bare_bandwidth, forget, memory_group, run_json

PROMPT = "The quick brown fox jumps over the lazy dog"
BARE_BYTES = 1 << 29
MMAP_TOKENS = 3  # each reads the whole file; the first is not counted


@dataclass(frozen=True, slots=True)
class Candidate:
    name: str
    options: tuple[str, ...]  # of `flexinfer run`; none: llama.cpp
    meaning: str

    @property
    def is_llamacpp(self) -> bool:
        return not self.options


def _ours(policy: str, meaning: str, *options: str) -> Candidate:
    name = f"{policy}, serial" if options else policy
    return Candidate(name, (f"--policy={policy}", *options), meaning)


MMAP = "mmap"
ROWS = "rows"
TENSOR = "tensor"
LAYER = "layer"
ATTENTION_FIRST = "attention-first"
FFN_FIRST = "ffn-first"
SERIAL_LAYER = "layer, serial"
SERIAL_ROWS = "rows, serial"

# In the order of a round: what a figure compares lies side by side.
CANDIDATES = (
    Candidate(MMAP, (), "llama.cpp, the file mapped and not repacked"),
    _ours(LAYER, "whole leading layers locked, a read when it is needed", "--no-prefetch"),
    _ours(LAYER, "the same layers, the rest prefetched"),
    _ours(ATTENTION_FIRST, "attention of all layers locked before any FFN"),
    _ours(TENSOR, "the paper's full method: prefetching, balanced and flexible locking"),
    _ours(FFN_FIRST, "FFN of all layers locked before any attention"),
    _ours(ROWS, "ours: the same share of every layer locked, the rest prefetched"),
    _ours(ROWS, "the same share, a read when it is needed", "--no-prefetch"),
)


@dataclass(frozen=True, slots=True)
class Run:
    """One candidate once. What the process could not give is None; `error` says why it gave
    nothing.
    """

    percent: float
    round: int
    candidate: str
    limit_bytes: int
    wall_s: float  # all of it: loading, prompt, bare reads
    disk_bytes_per_s: float  # bare, right before and after
    tpot_s: float | None = None
    sweep_read_bytes: int | None = None  # streamed in a sweep; of mmap: read for a token
    locked_bytes: int | None = None
    stall_s: float | None = None  # a sweep's wait for reads
    peak_rss_bytes: int | None = None
    token_ids: tuple[int, ...] | None = None
    error: str | None = None

    @property
    def done(self) -> bool:
        return self.error is None


def measure(
    candidate: Candidate,
    path: Path,
    *,
    percent: float,
    round_index: int,
    limit_bytes: int,
    new_tokens: int,
    llamacpp: str | None,
    timeout_s: float,
) -> Run:
    """Run a candidate in a group of `limit_bytes`. Needs root."""
    started = time.perf_counter()
    # Each bare read takes another part of the file: a host may have cached what was just read.
    place = round_index * 7 + CANDIDATES.index(candidate) + int(percent)
    reads = [_bare_s(path, 2 * place)]
    forget(path)
    fields: dict[str, Any]
    try:
        with memory_group(limit_bytes) as group:
            if candidate.is_llamacpp:
                assert llamacpp
                command = [llamacpp, LLAMACPP, str(path), "--repeat=1", "--no-repack"]
                command += [f"--new-tokens={MMAP_TOKENS}"]
                fields = _theirs(run_json(command, group, timeout_s))
            else:
                command = [sys.executable, "-m", "flexinfer", "run", str(path), PROMPT, "--raw"]
                command += ["--json", "--quiet", f"--ram={limit_bytes}", *candidate.options]
                command += [f"--max-tokens={new_tokens}"]
                fields = _our_fields(run_json(command, group, timeout_s))
    except RunFailed as failed:
        fields = {"error": str(failed).splitlines()[-1]}
    reads.append(_bare_s(path, 2 * place + 1))
    return Run(
        percent,
        round_index,
        candidate.name,
        limit_bytes,
        time.perf_counter() - started,
        len(reads) / sum(reads),
        **fields,
    )


def _bare_s(path: Path, place: int) -> float:
    """Seconds per byte of bare reads somewhere in the file."""
    return 1 / bare_bandwidth(path, BARE_BYTES, place * BARE_BYTES)


def _our_fields(report: dict[str, Any]) -> dict[str, Any]:
    if report["new_tokens"] < 3:
        return {"error": f"the text ended after {report['new_tokens']} tokens"}
    return {
        "tpot_s": report["tpot_s"],
        "sweep_read_bytes": report["streamed_bytes_per_sweep"],
        "locked_bytes": report["locked_bytes"],
        "stall_s": report["stall_s"] / report["sweeps"],
        "peak_rss_bytes": report["peak_rss_bytes"],
        "token_ids": tuple(report["token_ids"]),
    }


def _theirs(report: dict[str, Any]) -> dict[str, Any]:
    """Without the first token, which finds what loading left in the page cache."""
    times, reads = report["token_s"][1:], report["token_read_bytes"][1:]
    return {"tpot_s": sum(times) / len(times), "sweep_read_bytes": sum(reads) // len(reads)}
