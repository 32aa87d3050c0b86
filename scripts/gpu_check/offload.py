"""Child: the model of a file in float16 through Hugging Face accelerate's offloading to the CPU:
TTFT and TPOT within the same device memory. One JSON object.
"""

import argparse
import inspect
import json
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import child
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from flexinfer.executor.model import Model, open_model
from flexinfer.formats.checkpoint import TensorInfo
from flexinfer.ops.torch_quants import Unpacker
from flexinfer.units import parse_bytes

REPEATS = 2  # the first brings the libraries' kernels in; the last is told
HOST_BYTES = 1 << 40  # the offloaded part may be as large as it is
_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm.weight": "input_layernorm",
    "ffn_norm.weight": "post_attention_layernorm",
}


def reference(model: Model) -> Any:
    """The same values as a transformers model, float16, in host memory."""
    spec = model.spec
    config = LlamaConfig(
        vocab_size=spec.vocab_size,
        hidden_size=spec.dim,
        intermediate_size=spec.ffn_dim,
        num_hidden_layers=len(spec.layers),
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.kv_heads,
        max_position_embeddings=spec.context_tokens,
        rms_norm_eps=spec.norm_eps,
        tie_word_embeddings=False,
    )
    with torch.device("meta"):
        built = LlamaForCausalLM(config)
    built.load_state_dict(_state(model), assign=True)
    built.model.rotary_emb = type(built.model.rotary_emb)(config=config)  # no file has its buffers
    return built.eval()


def _state(model: Model) -> dict[str, Any]:
    spec, weights = model.spec, model.weights
    state = {"model.embed_tokens.weight": _values(weights.embedding)}
    for matrix in weights.matrices:
        values = _values(matrix.tensor)
        if matrix.role in ("attn_q", "attn_k"):
            values = _half_split(values, spec.head_dim)
        name = "lm_head"
        if matrix.layer >= 0:
            name = f"model.layers.{matrix.layer}.{_NAMES[matrix.role]}"
        state[f"{name}.weight"] = values
    for name, tensor in weights.vectors.items():
        _, layer, role = name.split(".", 2) if name.startswith("blk.") else ("", "", "")
        path = f"model.layers.{layer}.{_NAMES[role]}" if layer else "model.norm"
        state[f"{path}.weight"] = _values(tensor).reshape(-1)
    return state


def _values(tensor: TensorInfo) -> Any:
    """float16 [rows, columns]."""
    data = np.fromfile(tensor.path, np.uint8, tensor.size_bytes, offset=tensor.offset_bytes)
    unpacker = Unpacker(torch.device("cpu"))
    out = torch.empty((tensor.rows, tensor.columns), dtype=torch.float16)
    rows = torch.from_numpy(data).view(tensor.rows, -1)
    for first in range(0, tensor.rows, 1024):  # a float32 copy of a part at a time
        part = rows[first : first + 1024]
        out[first : first + len(part)] = unpacker.rows(
            tensor.block_type.ggml_id, part, len(part), tensor.columns, interleaved=False
        )
    return out


def _half_split(rows: Any, head_dim: int) -> Any:
    """GGUF's llama has rotated pairs side by side, transformers has them half a head apart."""
    pairs = rows.view(-1, head_dim // 2, 2, rows.shape[1])
    return pairs.transpose(1, 2).reshape(rows.shape).contiguous()


def offloaded(built: Any, device: str, vram_bytes: int) -> tuple[Any, int]:
    """With what fits into the memory kept there, as accelerate places it, and how many modules."""
    import accelerate  # not needed for `reference`

    target = torch.device(device)
    if target.type == "cpu":
        return accelerate.cpu_offload(built, execution_device=target), 0
    index = target.index or 0
    target = torch.device(target.type, index)
    placed = accelerate.infer_auto_device_map(
        built,
        max_memory={index: vram_bytes, "cpu": HOST_BYTES},
        no_split_module_classes=built._no_split_modules,
    )
    there = sum(place == index for place in placed.values())
    if not there:
        return accelerate.cpu_offload(built, execution_device=target), 0
    skipped = built._skip_keys_device_placement  # the cache stays where its layer is
    return accelerate.dispatch_model(built, placed, main_device=index, skip_keys=skipped), there


def generate(built: Any, ids: list[int], new_tokens: int, device: Any) -> tuple[float, float]:
    """(TTFT, TPOT) in seconds, greedily; each token reaches the host before the next begins."""
    known = inspect.signature(type(built).forward).parameters
    name = "cache" if "cache" in known else "past_key_values"  # it was renamed in transformers 5
    tokens, cache, times = torch.tensor([ids], device=device), None, []
    started = time.perf_counter()
    with torch.inference_mode():
        for _ in range(new_tokens):
            result = built(input_ids=tokens, use_cache=True, **{name: cache})
            cache = result[name]
            token = int(result.logits[0, -1].argmax())
            tokens = torch.tensor([[token]], device=device)
            times.append(time.perf_counter() - started)
    return times[0], (times[-1] - times[0]) / (new_tokens - 1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--device", required=True)
    parser.add_argument("--vram", type=parse_bytes, required=True)
    parser.add_argument("--prompt-tokens", type=int, required=True)
    parser.add_argument("--new-tokens", type=int, required=True)
    args = parser.parse_args()
    model = open_model(args.model)
    built, kept = offloaded(reference(model), args.device, args.vram)
    for repeat in range(REPEATS):
        ids = [(17 * i + 3 + repeat) % model.spec.vocab_size for i in range(args.prompt_tokens)]
        ttft_s, tpot_s = generate(built, ids, args.new_tokens, torch.device(args.device))
    row: dict[str, Any] = {
        "ttft_s": ttft_s,
        "tpot_s": tpot_s,
        "modules_on_device": kept,
        "vram_bytes": args.vram,
        "peak_tensor_bytes": None,
        "accelerate": version("accelerate"),
        "transformers": version("transformers"),
    }
    if args.device != "cpu":
        row["peak_tensor_bytes"] = torch.cuda.max_memory_allocated(torch.device(args.device))
    print(json.dumps(row))


if __name__ == "__main__":
    child.run(main)
