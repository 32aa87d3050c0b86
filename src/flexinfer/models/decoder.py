"""The dense decoder family (Llama, Qwen, Gemma, Phi-3, …): one layer, steered by the spec."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flexinfer.models.spec import ModelSpec
from flexinfer.ops.base import Array, BoundMatrix, Epilogue, LayerOps, Span


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

    def layer(
        self, ops: LayerOps, index: int, b: Buffers, spans: Sequence[Span], angles: Array | None
    ) -> None:
        """Run layer `index` on b.hidden in place; `angles` [tokens, 2 * pairs] are its rope's."""
        self._attention(ops, index, b, spans, angles)
        self._feed_forward(ops, index, b)

    def head(self, ops: LayerOps, hidden: Array, x: Array) -> None:
        """The last norm; the product with the output matrix is the caller's."""
        ops.rms_norm(hidden, self.vectors["output_norm.weight"], self.spec.norm_eps, x)
        if self.spec.logit_scale != 1.0:
            ops.scale(x, self.spec.logit_scale)  # rather than the logits: they are many more

    def _vector(self, index: int, name: str) -> Array | None:
        return self.vectors.get(f"blk.{index}.{name}")

    def _input(self, ops: LayerOps, index: int, part: str, b: Buffers) -> Array:
        """What attention or the FFN begins with: the hidden state, normed where the model does."""
        if not self.spec.pre_norms:
            return b.hidden
        ops.rms_norm(b.hidden, self._vector(index, f"{part}_norm.weight"), self.spec.norm_eps, b.x)
        return b.x

    def _attention(
        self, ops: LayerOps, index: int, b: Buffers, spans: Sequence[Span], angles: Array | None
    ) -> None:
        spec, layer = self.spec, self.spec.layers[index]
        wq, wk, wv, wo = (
            self.matrices[index, f"attn_{role}"] for role in ("q", "k", "v", "output")
        )
        x = ops.quantise(self._input(ops, index, "attn", b), b.quantised_dim, (wq, wk, wv))
        ops.linear(wq, x, b.q, bias=self._vector(index, "attn_q.bias"))
        ops.linear(wk, x, b.k, bias=self._vector(index, "attn_k.bias"))
        ops.linear(wv, x, b.v, bias=self._vector(index, "attn_v.bias"))
        if spec.qk_norm:
            for rows, name in ((b.q, "attn_q_norm.weight"), (b.k, "attn_k_norm.weight")):
                parts = rows.reshape(-1, spec.head_dim) if spec.qk_norm == "head" else rows
                ops.rms_norm(parts, self._vector(index, name), spec.norm_eps, parts)
        if layer.rope:
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

    def _feed_forward(self, ops: LayerOps, index: int, b: Buffers) -> None:
        spec = self.spec
        gate, up, down = (self.matrices[index, f"ffn_{role}"] for role in ("gate", "up", "down"))
        activation = Epilogue.SILU_MUL if spec.activation == "silu" else Epilogue.GELU_MUL
        x = ops.quantise(self._input(ops, index, "ffn", b), b.quantised_dim, (gate, up))
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
