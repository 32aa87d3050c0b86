"""How an accelerator cuts its work: by the model's shapes alone, never by a budget.

Its library adds in an order that may depend on the shape of a product. As the shapes of all
products follow from the model and the prompt, tokens are the same at every --ram and --vram.
"""

from collections.abc import Iterable

from flexinfer.formats.checkpoint import TensorInfo
from flexinfer.models.spec import ModelSpec
from flexinfer.planner.placement import GROUP_ROWS

TOKEN_TILE = 256  # tokens of a sweep that are multiplied together, counted from its first
WEIGHT_TILE_VALUES = 1 << 21
WEIGHT_TILE_ROWS = 4096
CHUNK_VALUES = 1 << 18  # of norms, rotations and other work element by element
UNPACKING_BYTES = 8  # a value at the worst moment, its float32 included
_FLOAT_BYTES = 4


def tile_rows(rows: int, columns: int) -> int:
    """Rows of a weight matrix that are dequantised and multiplied together."""
    fit = min(WEIGHT_TILE_ROWS, WEIGHT_TILE_VALUES // columns) // GROUP_ROWS * GROUP_ROWS
    return min(rows, max(GROUP_ROWS, fit))


def tile_values(tensors: Iterable[TensorInfo]) -> int:
    """Of the largest tile; its padded last group included."""
    return max(
        -(-tile_rows(t.rows, t.columns) // GROUP_ROWS) * GROUP_ROWS * t.columns for t in tensors
    )


def scratch_bytes(
    spec: ModelSpec, tensors: Iterable[TensorInfo], sweep_tokens: int, context_tokens: int
) -> int:
    """What computing takes for a moment: the most of a product's, of attention's, of the rest."""
    tensors = tuple(tensors)
    tokens = min(sweep_tokens, TOKEN_TILE)
    weights = tile_values(tensors) * (UNPACKING_BYTES + _FLOAT_BYTES)
    rows = max(tile_rows(t.rows, t.columns) for t in tensors)
    columns = max(t.columns for t in tensors)
    product = weights + tokens * (3 * rows + 3 * columns) * _FLOAT_BYTES
    keys = 2 * context_tokens * spec.kv_heads * spec.head_dim * _FLOAT_BYTES
    queries = 4 * tokens * spec.heads * spec.head_dim * _FLOAT_BYTES
    scores = tokens * context_tokens * (1 + 2 * _FLOAT_BYTES)
    if spec.attention_softcap:
        scores += 4 * tokens * context_tokens * spec.heads // spec.kv_heads * _FLOAT_BYTES
    widest = max(columns, spec.heads * spec.head_dim)
    rest = 6 * _FLOAT_BYTES * max(widest, min(CHUNK_VALUES, sweep_tokens * widest))
    return max(product, keys + queries + scores, rest)
