"""Child: one strategy on the speed model: TTFT and TPOT beside their prediction, memory beside its
budget. One JSON object; an error that is the user's to mend is one, too.
"""

import argparse
import json
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import child
import torch

from flexinfer import LLM, SamplingParams
from flexinfer.executor.model import Model, open_model
from flexinfer.executor.options import Options
from flexinfer.executor.setup import plan_run

REPEATS = 2  # the first brings the libraries' kernels in; the last is told
SAMPLE_S = 0.005


class DeviceMeter:
    """The most that this process took on the device since it was made: of `torch`'s tensors, of its
    allocator with what it keeps, and of the device's free memory. What the driver takes for a
    context is there before.
    """

    def __init__(self, name: str) -> None:
        self._device = torch.device(name)
        self._on_cuda = self._device.type == "cuda"
        self._done = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        if self._on_cuda:
            self._before = self._least_free = torch.cuda.mem_get_info(self._device)[0]
            self._sampler.start()

    def _sample(self) -> None:
        while not self._done.wait(SAMPLE_S):
            free = torch.cuda.mem_get_info(self._device)[0]
            self._least_free = min(self._least_free, free)

    def peaks(self) -> dict[str, int | None]:
        """Bytes; None on the stand-in, whose tensors are the host's."""
        if not self._on_cuda:
            names = ("peak_tensor_bytes", "peak_reserved_bytes", "peak_device_bytes")
            return dict.fromkeys(names)
        self._done.set()
        self._sampler.join()
        return {
            "peak_tensor_bytes": torch.cuda.max_memory_allocated(self._device),
            "peak_reserved_bytes": torch.cuda.max_memory_reserved(self._device),
            "peak_device_bytes": self._before - self._least_free,
        }


def run(model: Model, options: Options, prompt_tokens: int, new_tokens: int) -> dict[str, Any]:
    """The names of `flexinfer bench --json`, and what lies where."""
    planned = plan_run(model, options, prompt_tokens, new_tokens)
    params = SamplingParams(max_tokens=new_tokens, ignore_end=True)
    first_ttft_s, first_link_bytes = 0.0, 0
    with LLM.from_plan(model, planned) as llm:
        for repeat in range(REPEATS):
            first_link_bytes = llm.session.link_bytes
            # Another first token: nothing of the cache can be used again.
            ids = [(17 * i + 3 + repeat) % model.spec.vocab_size for i in range(prompt_tokens)]
            answer = llm.generate(ids, params)
            first_ttft_s = first_ttft_s or answer.stats.ttft_s
        stats = asdict(answer.stats)
        stats["link_bytes"] -= first_link_bytes
        page_locked = llm.session.page_locked
    plan, device = planned.plan, planned.plan.device
    return stats | {
        "first_ttft_s": first_ttft_s,
        "page_locked": page_locked,
        "prefill_strategy": device.prefill.name if device else "cpu",
        "decode_strategy": device.decode.name if device else "cpu",
        "device_locked_layers": len(device.locked_layers) if device else 0,
        "device_cached_layers": len(device.cached_layers) if device else 0,
        "device_ring_slots": device.ring_slots if device else 0,
        "sweep_tokens": plan.sweep_tokens,
        "predicted_link_bytes_per_s": (
            planned.hardware.device.to_device.bytes_per_s if planned.hardware.device else None
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--device", required=True)
    parser.add_argument("--vram", required=True)
    parser.add_argument("--ram")
    parser.add_argument("--strategy", required=True)
    parser.add_argument("--prompt-tokens", type=int, required=True)
    parser.add_argument("--new-tokens", type=int, required=True)
    args = parser.parse_args()
    on_host = args.strategy == "cpu"
    options = Options(
        ram=args.ram,
        device=None if on_host else args.device,
        vram=None if on_host else args.vram,
        strategy=None if on_host else args.strategy,
    )
    meter = None if on_host else DeviceMeter(args.device)
    row = run(open_model(args.model), options, args.prompt_tokens, args.new_tokens)
    print(json.dumps(row | (meter.peaks() if meter else {})))


if __name__ == "__main__":
    child.run(main)
