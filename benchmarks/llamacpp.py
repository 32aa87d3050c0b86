"""Prefill and decode speed of llama.cpp on a GGUF file, as one JSON line, for benchmarks side by
side.

    PYTHON benchmarks/llamacpp.py MODEL.gguf [--prompt-tokens 1] [--new-tokens 16] [--threads 2]
                                             [--no-repack]

PYTHON is an interpreter with `llama-cpp-python==0.3.36`. The file is mapped, llama.cpp's default;
--no-repack leaves the weights in the mapping, which is what a memory limit needs. Each repeat
begins with an empty cache; the prompt is one batch, the new tokens follow one by one. Nothing is
sampled: ids are fixed, and what a token costs is computing its logits. `token_s` and
`token_read_bytes` are what each new token of the last repeat took and had read from the disk (as
the kernel counts it for the process, page faults included).
"""

import argparse
import ctypes
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import llama_cpp as lc


def read_bytes() -> int:
    """What this process has had fetched from disks so far."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    raise SystemExit("/proc/self/io has no read_bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model")
    parser.add_argument("--prompt-tokens", type=int, default=1)
    parser.add_argument("--new-tokens", type=int, default=16)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-repack", action="store_true")
    args = parser.parse_args()
    quiet = lc.llama_log_callback(lambda level, text, data: None)
    lc.llama_log_set(quiet, ctypes.c_void_p(0))
    lc.llama_backend_init()
    model_params = lc.llama_model_default_params()
    model_params.use_extra_bufts = not args.no_repack
    model_params.n_gpu_layers = 0
    model = lc.llama_model_load_from_file(args.model.encode(), model_params)
    if not model:
        raise SystemExit(f"llama.cpp cannot load {args.model}")
    vocab_size = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(model))
    params = lc.llama_context_default_params()
    params.n_ctx = args.prompt_tokens + args.new_tokens + 64
    params.n_batch = max(args.prompt_tokens, params.n_ubatch)
    params.n_threads = params.n_threads_batch = args.threads
    context = lc.llama_init_from_model(model, params)

    def sweep(positions: Sequence[int]) -> None:
        ids = (lc.llama_token * len(positions))(*(31 * p % vocab_size for p in positions))
        if lc.llama_decode(context, lc.llama_batch_get_one(ids, len(positions))) != 0:
            raise SystemExit("llama_decode failed")
        lc.llama_synchronize(context)

    first_s, rates = [], []
    for _ in range(args.repeat):
        lc.llama_memory_clear(lc.llama_get_memory(context), True)
        started = time.perf_counter()
        sweep(range(args.prompt_tokens))
        first_s.append(time.perf_counter() - started)
        token_s: list[float] = []
        token_read_bytes: list[int] = []
        for position in range(args.prompt_tokens, args.prompt_tokens + args.new_tokens):
            started, read_before = time.perf_counter(), read_bytes()
            sweep([position])
            token_s.append(time.perf_counter() - started)
            token_read_bytes.append(read_bytes() - read_before)
        rates.append(len(token_s) / sum(token_s))
    report = {
        "ttft_s": first_s,
        "prompt_tokens_per_s": [args.prompt_tokens / s for s in first_s],
        "decode_tokens_per_s": rates,
        "median_tokens_per_s": statistics.median(rates),
        "token_s": token_s,
        "token_read_bytes": token_read_bytes,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
