"""Decode speed of llama.cpp on a GGUF file, as one JSON line, for benchmarks side by side.

    PYTHON benchmarks/llamacpp.py MODEL.gguf [--new-tokens 16] [--threads 2] [--no-repack]

PYTHON is an interpreter with `llama-cpp-python==0.3.36`. The file is mapped, llama.cpp's default;
--no-repack leaves the weights in the mapping, which is what a memory limit needs.
"""

import argparse
import ctypes
import json
import statistics
import time

import llama_cpp as lc


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
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
    params.n_ctx = args.new_tokens + 64
    params.n_threads = params.n_threads_batch = args.threads
    context = lc.llama_init_from_model(model, params)
    rates = []
    for _ in range(args.repeat):
        lc.llama_memory_clear(lc.llama_get_memory(context), True)
        started = time.perf_counter()
        for position in range(args.new_tokens):
            tokens = (lc.llama_token * 1)(31 * position % vocab_size)
            if lc.llama_decode(context, lc.llama_batch_get_one(tokens, 1)) != 0:
                raise SystemExit("llama_decode failed")
            lc.llama_synchronize(context)
        rates.append(args.new_tokens / (time.perf_counter() - started))
    print(
        json.dumps({"decode_tokens_per_s": rates, "median_tokens_per_s": statistics.median(rates)})
    )


if __name__ == "__main__":
    main()
