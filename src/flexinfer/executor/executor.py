"""The executor: a sweep is one loop over the layers, each weight taken from wherever it is."""

from collections.abc import Callable, Sequence

import numpy as np

from flexinfer.executor.workspace import Workspace
from flexinfer.models.decoder import Decoder
from flexinfer.models.spec import Rope
from flexinfer.ops.base import Array, Input, Ops, Span

HEAD = (-1, "output")
SCORE_SLAB_VALUES = 1 << 19  # 2 MiB, and as much again for each step of the reduction


class Executor:
    """Runs sweeps of a decoder by `ops`, in the workspace's memory."""

    def __init__(self, decoder: Decoder, ops: Ops, workspace: Workspace) -> None:
        self._decoder = decoder
        self._ops = ops
        self._workspace = workspace
        self._ropes = tuple(
            dict.fromkeys(layer.rope for layer in decoder.spec.layers if layer.rope)
        )
        self._frequencies = tuple(inverse_frequencies(rope) for rope in self._ropes)
        self.sweeps = 0

    @property
    def sweep_tokens(self) -> int:
        return self._workspace.tokens

    @property
    def layers(self) -> int:
        return len(self._decoder.spec.layers)

    def sweep(
        self,
        tokens: Sequence[int],
        spans: Sequence[Span],
        *,
        logits: bool = True,
        on_layer: Callable[[int], None] | None = None,
    ) -> Array | None:
        """Run `tokens` (at most sweep_tokens) through all layers; their keys and values join the
        cache.

        Returns the logits [vocabulary] of the last token, a view that the next sweep overwrites,
        or None. An exception (Ctrl-C, a read error) leaves the stream at the beginning of a sweep;
        the cache rows of the sweep's tokens are then undefined.
        """
        try:
            hidden = self._layers(tokens, spans, on_layer)
            head = self._decoder.matrices[HEAD]
            if not logits:
                self._ops.pass_over(head)
                return None
            out = self._workspace.logits
            self._ops.linear(head, self._head_input(hidden[-1:]), out)
            self._soften(out)
            return out[0]
        except BaseException:
            self._ops.abandon_sweep()
            raise

    def score(self, tokens: Sequence[int], spans: Sequence[Span], first: int) -> Array:
        """Log-probabilities of tokens[first + 1:], each given all before it: float64 [len(tokens)
        - first - 1].

        The head's product exists only a slab of the vocabulary at a time (log-sum-exp, merged as
        it goes).
        """
        try:
            hidden = self._layers(tokens, spans, None)
            x = self._head_input(hidden[first:-1])
            targets = np.asarray(tokens[first + 1 :])
            n = len(targets)
            width = max(256, SCORE_SLAB_VALUES // n // 16 * 16)
            slab = np.empty((n, width), np.float32)
            peak = np.full(n, -np.inf)
            total = np.zeros(n)
            chosen = np.zeros(n)
            for row, values in self._ops.slabs(self._decoder.matrices[HEAD], x, slab):
                exact = np.ascontiguousarray(values)
                self._soften(exact)
                here = (targets >= row) & (targets < row + exact.shape[1])
                chosen[here] = exact[here, targets[here] - row]
                new_peak = np.maximum(peak, exact.max(1))
                shifted = exact - new_peak[:, None].astype(np.float32)
                total = total * np.exp(peak - new_peak) + np.exp(shifted).sum(1, dtype=np.float64)
                peak = new_peak
            return chosen - (peak + np.log(total))
        except BaseException:
            self._ops.abandon_sweep()
            raise

    def _layers(
        self, tokens: Sequence[int], spans: Sequence[Span], on_layer: Callable[[int], None] | None
    ) -> Array:
        n, spec = len(tokens), self._decoder.spec
        buffers = self._workspace.buffers(n)
        self._ops.embed(tokens, spec.embedding_scale, buffers.hidden)
        angles = self._angles(n, spans)
        for index, layer in enumerate(spec.layers):
            if on_layer:
                on_layer(index)
            turns = angles[layer.rope] if layer.rope else None
            self._decoder.layer(self._ops, index, buffers, spans, turns)
        self.sweeps += 1
        return buffers.hidden

    def _angles(self, n: int, spans: Sequence[Span]) -> dict[Rope, Array]:
        positions = np.concatenate([np.arange(s.start, s.start + s.count) for s in spans])
        angles = {}
        for i, (rope, frequencies) in enumerate(zip(self._ropes, self._frequencies, strict=True)):
            space = self._workspace.angles[i][: n * rope.dim].reshape(n, rope.dim)
            self._ops.rope_angles(frequencies, positions.astype(np.int32), rope.magnitude, space)
            angles[rope] = space
        return angles

    def _head_input(self, hidden: Array) -> Input:
        n, dim = hidden.shape
        x = self._workspace.narrow[: n * dim].reshape(n, dim)
        self._decoder.head(self._ops, hidden, x)
        space = self._workspace.quantised_rows(n, dim)
        return self._ops.quantise(x, space, (self._decoder.matrices[HEAD],))

    def _soften(self, logits: Array) -> None:
        if self._decoder.spec.logit_softcap:
            self._ops.softcap(logits, self._decoder.spec.logit_softcap)


def inverse_frequencies(rope: Rope) -> Array:
    """Angle per position of each pair, float64 [dim / 2]."""
    powers = np.arange(0, rope.dim, 2, dtype=np.float64) / rope.dim
    frequencies = rope.scale / rope.base**powers
    if rope.factors is not None:
        frequencies = frequencies / np.asarray(rope.factors, np.float64)
    return frequencies
