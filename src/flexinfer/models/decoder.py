"""The dense decoder family (Llama, Qwen 2 and 3, Gemma 3): one layer, steered by the spec's
flags.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flexinfer.models.spec import ModelSpec
from flexinfer.ops.base import Array, BoundMatrix, Epilogue, Ops, Span


@dataclass(frozen=True, slots=True)
class Buffers:
    """One sweep's activations, float32 [tokens, columns] unless said. `wide` holds q, k, v,
    then the FFN's inside.
    """

    hidden: Array
    x: Array  # a norm's output [tokens, dim]
    heads: Array  # the same memory as x: attention's output [tokens, heads * head_dim]
    q: Array
    k: Array
    v: Array
    inner: Array  # wide as [tokens, ffn_dim]
    wide_out: Array  # wide as [tokens, dim]
    quantised_dim: Array  # one memory, uint8 [tokens, bytes]: the int8 form of dim columns,
    quantised_heads: Array  # of heads * head_dim,
    quantised_inner: Array  # of ffn_dim


@dataclass(frozen=True, slots=True)
class Decoder:
    """`matrices` by (layer, role), `vectors` by tensor name."""

    spec: ModelSpec
    matrices: Mapping[tuple[int, str], BoundMatrix]
    vectors: Mapping[str, Array]

    def layer(self, ops: Ops, index: int, b: Buffers, spans: Sequence[Span], angles: Array) -> None:
        """Run layer `index` on b.hidden in place; `angles` [tokens, 2 * pairs] are the rope's
        of this layer.
        """
        self._attention(ops, index, b, spans, angles)
        self._feed_forward(ops, index, b)

    def head(self, ops: Ops, hidden: Array, x: Array) -> None:
        """The last norm; the product with the output matrix is the caller's."""
        ops.rms_norm(hidden, self.vectors["output_norm.weight"], self.spec.norm_eps, x)

    def _vector(self, index: int, name: str) -> Array | None:
        return self.vectors.get(f"blk.{index}.{name}")

    def _attention(
        self, ops: Ops, index: int, b: Buffers, spans: Sequence[Span], angles: Array
    ) -> None:
        spec, layer = self.spec, self.spec.layers[index]
        wq, wk, wv, wo = (
            self.matrices[index, f"attn_{role}"] for role in ("q", "k", "v", "output")
        )
        ops.rms_norm(b.hidden, self._vector(index, "attn_norm.weight"), spec.norm_eps, b.x)
        x = ops.quantise(b.x, b.quantised_dim, (wq, wk, wv))
        ops.linear(wq, x, b.q, bias=self._vector(index, "attn_q.bias"))
        ops.linear(wk, x, b.k, bias=self._vector(index, "attn_k.bias"))
        ops.linear(wv, x, b.v, bias=self._vector(index, "attn_v.bias"))
        if spec.qk_norm:
            for rows, name in ((b.q, "attn_q_norm.weight"), (b.k, "attn_k_norm.weight")):
                heads = rows.reshape(-1, spec.head_dim)
                ops.rms_norm(heads, self._vector(index, name), spec.norm_eps, heads)
        adjacent = layer.rope.pairing == "adjacent"
        ops.rope(b.q, spec.heads, spec.head_dim, angles, adjacent)
        ops.rope(b.k, spec.kv_heads, spec.head_dim, angles, adjacent)
        ops.attention(b.q, b.k, b.v, b.heads, index, spans, layer.window_tokens)
        x = ops.quantise(b.heads, b.quantised_heads, (wo,))
        bias = self._vector(index, "attn_output.bias")
        if spec.post_norms:
            ops.linear(wo, x, b.wide_out, bias=bias)
            norm = self._vector(index, "post_attention_norm.weight")
            ops.rms_norm_add(b.wide_out, norm, spec.norm_eps, b.hidden)
        else:
            ops.linear(wo, x, b.hidden, Epilogue.ADD, bias)

    def _feed_forward(self, ops: Ops, index: int, b: Buffers) -> None:
        spec = self.spec
        gate, up, down = (self.matrices[index, f"ffn_{role}"] for role in ("gate", "up", "down"))
        activation = Epilogue.SILU_MUL if spec.activation == "silu" else Epilogue.GELU_MUL
        ops.rms_norm(b.hidden, self._vector(index, "ffn_norm.weight"), spec.norm_eps, b.x)
        x = ops.quantise(b.x, b.quantised_dim, (gate, up))
        ops.linear(gate, x, b.inner, bias=self._vector(index, "ffn_gate.bias"))
        ops.linear(up, x, b.inner, activation, self._vector(index, "ffn_up.bias"))
        x = ops.quantise(b.inner, b.quantised_inner, (down,))
        bias = self._vector(index, "ffn_down.bias")
        if spec.post_norms:
            ops.linear(down, x, b.x, bias=bias)
            norm = self._vector(index, "post_ffw_norm.weight")
            ops.rms_norm_add(b.x, norm, spec.norm_eps, b.hidden)
        else:
            ops.linear(down, x, b.hidden, Epilogue.ADD, bias)
