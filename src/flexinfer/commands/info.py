"""`flexinfer info`: what a model file holds, from its header alone."""

import argparse
import json
from collections import Counter
from math import prod
from typing import Any

from flexinfer.commands.console import Console, printable
from flexinfer.commands.figures import aligned, share
from flexinfer.commands.models import model_path
from flexinfer.errors import FlexInferError
from flexinfer.formats.checkpoint import Checkpoint
from flexinfer.formats.open import open_checkpoint
from flexinfer.formats.quants import BLOCK_TYPES
from flexinfer.models.from_gguf import spec_from_gguf
from flexinfer.models.spec import ModelSpec
from flexinfer.models.weights import collect_weights
from flexinfer.units import format_bytes

KV_TYPE = BLOCK_TYPES[1]  # the default --kv-type, f16


def info(args: argparse.Namespace, console: Console) -> int:
    """Print what is known; a model that cannot be run is an error behind that, in `run`'s words."""
    checkpoint = open_checkpoint(model_path(args.model))
    spec, refusal = None, None
    try:
        spec = spec_from_gguf(checkpoint)
        collect_weights(checkpoint, spec)
    except FlexInferError as error:
        refusal = error
    facts = describe(checkpoint, spec, refusal)
    if args.json:
        print(json.dumps(facts))
    else:
        print("\n".join(show(facts)))
    if refusal:
        raise refusal
    return 0


def describe(
    checkpoint: Checkpoint, spec: ModelSpec | None, refusal: FlexInferError | None
) -> dict[str, Any]:
    """Plain values; those of the spec are absent where the file gives none."""
    metadata, tensors = checkpoint.metadata, checkpoint.tensors.values()

    def text(key: str) -> str | None:
        """What is of another type is no name."""
        value = metadata.get(key)
        return value if isinstance(value, str) else None

    types: Counter[str] = Counter()
    for tensor in tensors:
        types[tensor.block_type.name] += tensor.size_bytes
    facts: dict[str, Any] = {
        "path": str(checkpoint.path),
        "file_bytes": sum(p.stat().st_size for p in {t.path for t in checkpoint.tensors.values()}),
        "name": text("general.name"),
        "architecture": text("general.architecture"),
        "parameters": sum(prod(tensor.shape) for tensor in tensors),
        "bytes_by_type": dict(types.most_common()),
        "tokenizer": text("tokenizer.ggml.model"),
        "pre_tokenizer": text("tokenizer.ggml.pre"),
        "chat_template": bool(metadata.get("tokenizer.chat_template")),
        "runs": refusal is None,
        "refusal": str(refusal) if refusal else None,
    }
    if spec:
        windows = [layer.window_tokens for layer in spec.layers if layer.window_tokens]
        facts |= {
            "layers": len(spec.layers),
            "dim": spec.dim,
            "ffn_dim": spec.ffn_dim,
            "heads": spec.heads,
            "kv_heads": spec.kv_heads,
            "head_dim": spec.head_dim,
            "vocabulary": spec.vocab_size,
            "context_tokens": spec.context_tokens,
            "window_tokens": min(windows, default=None),
            "tied_head": spec.tied_head,
            "kv_bytes_per_token": spec.kv_bytes_per_token(KV_TYPE),
        }
    return facts


def show(facts: dict[str, Any]) -> list[str]:
    total = sum(facts["bytes_by_type"].values())
    types = [
        f"{name} {format_bytes(size)} ({share(size, total)})"
        for name, size in facts["bytes_by_type"].items()
    ]
    pre = f" ({facts['pre_tokenizer']})" if facts["pre_tokenizer"] else ""
    rows = [
        ("file", f"{facts['path']} ({format_bytes(facts['file_bytes'])})"),
        ("name", facts["name"] or "not given"),
        ("architecture", facts["architecture"] or "not given"),
        ("parameters", _millions(facts["parameters"])),
        *(_spec_rows(facts) if "layers" in facts else ()),
        ("types", ", ".join(types)),
        ("tokenizer", f"{facts['tokenizer'] or 'none'}{pre}"),
        ("chat template", "yes" if facts["chat_template"] else "no (run it with --raw)"),
        ("can be run", "yes" if facts["runs"] else "no"),
    ]
    return aligned([(name, printable(str(value))) for name, value in rows], left=2)


def _spec_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    heads = f"{facts['heads']} heads of {facts['head_dim']} ({facts['kv_heads']} kv)"
    head = "head tied to the embedding" if facts["tied_head"] else "a head of its own"
    window = facts["window_tokens"]
    return [
        ("layers", f"{facts['layers']}, dim {facts['dim']}, ffn {facts['ffn_dim']}, {heads}"),
        ("vocabulary", f"{facts['vocabulary']} tokens, {head}"),
        (
            "context",
            f"{facts['context_tokens']} tokens"
            + (f", {window} in layers with a sliding window" if window else ""),
        ),
        ("kv cache", f"{format_bytes(facts['kv_bytes_per_token'])} a token (f16)"),
    ]


def _millions(parameters: int) -> str:
    if parameters >= 1e9:
        return f"{parameters / 1e9:.2f} billion"
    return f"{parameters / 1e6:.1f} million"
