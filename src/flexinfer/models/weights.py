"""Which tensors a model needs, in the order a sweep uses them."""

from collections.abc import Mapping
from dataclasses import dataclass

from flexinfer.errors import FormatError, UnsupportedError
from flexinfer.formats.checkpoint import Checkpoint, TensorInfo, check_computable
from flexinfer.models.gguf_rope import FACTORS
from flexinfer.models.spec import ModelSpec

# Tensors that hold several matrices, one after the other (llama.cpp's build_qkv; LLM_FFN_SWIGLU).
FUSED = {"attn_qkv": ("attn_q", "attn_k", "attn_v"), "ffn_up": ("ffn_gate", "ffn_up")}


@dataclass(frozen=True, slots=True)
class Matrix:
    """A large matrix in its place; `role` is its name in a layer (attn_q, ffn_down, output, …)."""

    tensor: TensorInfo
    layer: int  # -1: the head
    role: str


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """Everything a sweep reads. `matrices` is in order of use, the head last."""

    embedding: TensorInfo
    vectors: dict[str, TensorInfo]  # norms and biases by tensor name: always locked, float32
    matrices: tuple[Matrix, ...]


def collect_weights(checkpoint: Checkpoint, spec: ModelSpec) -> ModelWeights:
    """Finds every tensor of the model, by GGUF's names, and holds its shape against the spec.

    Raises FormatError for a tensor that is missing or of another shape, UnsupportedError for one
    that the model does not use (the result would be wrong without it) or whose type we cannot
    compute with.
    """
    tensors = _Tensors(checkpoint)
    embedding = tensors.take("token_embd.weight", spec.vocab_size, spec.dim)
    matrices: list[Matrix] = []
    vectors: dict[str, TensorInfo] = {}
    shapes = matrix_shapes(spec)
    vector_sizes = _vector_sizes(spec)
    for layer in range(len(spec.layers)):
        tensors.split_fused(layer, shapes)
        for role, shape in shapes.items():
            tensor = tensors.take(f"blk.{layer}.{role}.weight", *shape)
            matrices.append(Matrix(tensor, layer, role))
        for suffix, (size, needed) in vector_sizes.items():
            name = f"blk.{layer}.{suffix}"
            if needed or name in tensors.unused:
                vectors[name] = tensors.take(name, size)
    vectors["output_norm.weight"] = tensors.take("output_norm.weight", spec.dim)
    head = embedding if spec.tied_head else tensors.take("output.weight", *embedding.shape)
    matrices.append(Matrix(head, -1, "output"))
    tensors.expect_none_left()
    used = (embedding, *vectors.values(), *(m.tensor for m in matrices))
    check_computable(dict.fromkeys(used))  # a tied head once
    return ModelWeights(embedding, vectors, tuple(matrices))


def matrix_shapes(spec: ModelSpec) -> dict[str, tuple[int, int]]:
    """(rows, columns) of a layer's matrices by role, in order of use."""
    queries = spec.heads * spec.head_dim
    keys = spec.kv_heads * spec.head_dim
    return {
        "attn_q": (queries, spec.dim),
        "attn_k": (keys, spec.dim),
        "attn_v": (keys, spec.dim),
        "attn_output": (spec.dim, queries),
        "ffn_gate": (spec.ffn_dim, spec.dim),
        "ffn_up": (spec.ffn_dim, spec.dim),
        "ffn_down": (spec.dim, spec.ffn_dim),
    }


def _vector_sizes(spec: ModelSpec) -> dict[str, tuple[int, bool]]:
    """A layer's vectors by the rest of their names: size, and whether the model needs them.

    Any matrix may have a bias; a norm that the model does not have is not a vector of it.
    """
    sizes: dict[str, tuple[int, bool]] = {}
    if spec.pre_norms:
        sizes |= {f"{name}.weight": (spec.dim, True) for name in ("attn_norm", "ffn_norm")}
    if spec.qk_norm:
        for name, heads in (("attn_q_norm", spec.heads), ("attn_k_norm", spec.kv_heads)):
            together = heads if spec.qk_norm == "projection" else 1
            sizes[f"{name}.weight"] = (together * spec.head_dim, True)
    if spec.post_norms:
        for name in ("post_attention_norm", "post_ffw_norm"):
            sizes[f"{name}.weight"] = (spec.dim, True)
    for role, (rows, _) in matrix_shapes(spec).items():
        sizes[f"{role}.bias"] = (rows, spec.qkv_bias and role in ("attn_q", "attn_k", "attn_v"))
    return sizes


class _Tensors:
    """A checkpoint's tensors, ticked off as they are taken."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.path = checkpoint.path
        self.unused = dict(checkpoint.tensors)
        for name in FACTORS:  # they are in the spec
            self.unused.pop(name, None)

    def split_fused(self, layer: int, shapes: Mapping[str, tuple[int, int]]) -> None:
        """Matrices (and their biases) that lie in one tensor become tensors, ranges of its rows:
        attn_qkv, and an ffn_up that begins with the gate.
        """
        for fused, roles in FUSED.items():
            for kind in ("weight", "bias"):
                if f"blk.{layer}.{roles[0]}.{kind}" in self.unused:
                    continue
                whole = self.unused.get(f"blk.{layer}.{fused}.{kind}")
                rows = sum(shapes[role][0] for role in roles)
                if whole is None or whole.shape[0] != rows:
                    continue
                del self.unused[whole.name]
                first = 0
                for role in roles:
                    name = f"blk.{layer}.{role}.{kind}"
                    self.unused[name] = whole.part(first, shapes[role][0])
                    first += shapes[role][0]

    def take(self, name: str, *shape: int) -> TensorInfo:
        tensor = self.unused.pop(name, None)
        if tensor is None:
            raise FormatError(f"{self.path}: the tensor {name} is missing", "use a complete file")
        if tensor.shape != shape:
            raise FormatError(
                f"{self.path}: the tensor {name} has shape {list(tensor.shape)}, "
                f"the model needs {list(shape)}",
                "use a sound file",
            )
        return tensor

    def expect_none_left(self) -> None:
        if self.unused:
            names = list(self.unused)
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise UnsupportedError(
                f"{self.path}: the model has no use for the tensors {', '.join(names[:3])}{more}; "
                "without them its results would be wrong",
                "the model is a variant that FlexInfer does not know",
            )
