"""The executor: a sweep is one loop over the layers, each weight taken from wherever it is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from flexinfer.executor.workspace import Workspace
from flexinfer.models.decoder import Buffers, Decoder
from flexinfer.models.spec import Rope
from flexinfer.ops.base import (
    Array,
    BoundMatrix,
    Input,
    LayerOps,
    Ops,
    Program,
    RecordingOps,
    Span,
)
from flexinfer.planner.device import PhaseName

HEAD = (-1, "output")
MAX_RECORDED_TOKENS = 16  # more take so long to compute that calling from Python costs nothing
MAX_RECORDS = 4  # kept: numbers of tokens that come again and again are few
SCORE_SLAB_VALUES = 1 << 19  # 2 MiB, and as much again for each step of the reduction


@dataclass(frozen=True, slots=True)
class Recorded:
    """A sweep of some number of tokens: its arrays, and a part for each layer, for the head, and
    for passing the head over.
    """

    buffers: Buffers
    angles: tuple[Array, ...]
    program: Program


class Executor:
    """Runs sweeps of a decoder by `ops`, in the workspace's memory.

    Sweeps of up to `recorded_tokens` tokens are recorded once and replayed; longer ones, and all
    where it is 0, make each call from here, which gives the same bits.
    """

    def __init__(
        self,
        decoder: Decoder,
        ops: RecordingOps,
        workspace: Workspace,
        recorded_tokens: int = MAX_RECORDED_TOKENS,
    ) -> None:
        self._decoder = decoder
        self._ops = ops
        self._workspace = workspace
        self._ropes = tuple(
            dict.fromkeys(layer.rope for layer in decoder.spec.layers if layer.rope)
        )
        self._frequencies = tuple(inverse_frequencies(rope) for rope in self._ropes)
        self.recorded_tokens = recorded_tokens
        self._recorded: dict[int, Recorded] = {}  # by number of tokens
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
        phase: PhaseName = "prefill",
    ) -> Array | None:
        """Run `tokens` (at most sweep_tokens) through all layers; their keys and values join the
        cache. Here all phases are alike.

        Returns the logits [vocabulary] of the last token, a view that the next sweep overwrites,
        or None. An exception (Ctrl-C, a read error) leaves the stream at the beginning of a sweep;
        the cache rows of the sweep's tokens are then undefined.
        """
        try:
            if len(tokens) <= self.recorded_tokens:
                self._replay(tokens, spans, logits, on_layer)
            else:
                hidden = self._layers(tokens, spans, on_layer)
                self._head(self._ops, hidden, logits)
            return self._workspace.logits[0] if logits else None
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
            x = self._head_input(self._ops, hidden[first:-1])
            head = self._decoder.matrices[HEAD]
            soften = partial(self._soften, self._ops)
            return log_probabilities(self._ops, head, x, tokens[first + 1 :], soften)
        except BaseException:
            self._ops.abandon_sweep()
            raise

    def _layers(
        self, tokens: Sequence[int], spans: Sequence[Span], on_layer: Callable[[int], None] | None
    ) -> Array:
        n, spec = len(tokens), self._decoder.spec
        buffers, angles = self._workspace.buffers(n), self._angles(n)
        self._ops.embed(tokens, spec.embedding_scale, buffers.hidden)
        self._turn(angles, spans)
        for index in range(self.layers):
            if on_layer:
                on_layer(index)
            self._layer(self._ops, index, buffers, angles, spans)
        self.sweeps += 1
        return buffers.hidden

    def _replay(
        self,
        tokens: Sequence[int],
        spans: Sequence[Span],
        logits: bool,
        on_layer: Callable[[int], None] | None,
    ) -> None:
        n = len(tokens)
        recorded = self._recorded.get(n)
        if recorded is None:
            if len(self._recorded) == MAX_RECORDS:
                del self._recorded[next(iter(self._recorded))]  # the oldest
            recorded = self._recorded[n] = self._record(n)
        self._ops.embed(tokens, self._decoder.spec.embedding_scale, recorded.buffers.hidden)
        self._turn(recorded.angles, spans)
        recorded.program.replay(range(self.layers), spans, on_layer)
        self.sweeps += 1
        recorded.program.replay((self.layers + (not logits),), spans)

    def _record(self, n: int) -> Recorded:
        recorded = Recorded(self._workspace.buffers(n), self._angles(n), self._ops.program(n))
        program, buffers = recorded.program, recorded.buffers
        for index in range(self.layers):
            self._layer(program, index, buffers, recorded.angles, ())
            program.close_part()
        for logits in (True, False):
            self._head(program, buffers.hidden, logits)
            program.close_part()
        return recorded

    def _layer(
        self,
        ops: LayerOps,
        index: int,
        buffers: Buffers,
        angles: Sequence[Array],
        spans: Sequence[Span],
    ) -> None:
        rope = self._decoder.spec.layers[index].rope
        turns = angles[self._ropes.index(rope)] if rope else None
        self._decoder.layer(ops, index, buffers, spans, turns)

    def _head(self, ops: LayerOps, hidden: Array, logits: bool) -> None:
        """The last token's logits into the workspace, or nothing."""
        head = self._decoder.matrices[HEAD]
        if not logits:
            ops.pass_over(head)
            return
        ops.linear(head, self._head_input(ops, hidden[-1:]), self._workspace.logits)
        self._soften(ops, self._workspace.logits)

    def _angles(self, n: int) -> tuple[Array, ...]:
        """Space for the angles of `n` tokens, of each kind of rope."""
        spaces = self._workspace.angles
        return tuple(
            spaces[i][: n * rope.dim].reshape(n, rope.dim) for i, rope in enumerate(self._ropes)
        )

    def _turn(self, angles: Sequence[Array], spans: Sequence[Span]) -> None:
        positions = np.concatenate(
            [np.arange(s.start, s.start + s.count, dtype=np.int32) for s in spans]
        )
        ropes = zip(self._ropes, self._frequencies, angles, strict=True)
        for rope, frequencies, space in ropes:
            self._ops.rope_angles(frequencies, positions, rope.magnitude, space)

    def _head_input(self, ops: LayerOps, hidden: Array) -> Input:
        n, dim = hidden.shape
        x = self._workspace.narrow[: n * dim].reshape(n, dim)
        self._decoder.head(ops, hidden, x)
        space = self._workspace.quantised_rows(n, dim)
        return ops.quantise(x, space, (self._decoder.matrices[HEAD],))

    def _soften(self, ops: LayerOps, logits: Array) -> None:
        if self._decoder.spec.logit_softcap:
            ops.softcap(logits, self._decoder.spec.logit_softcap)


def log_probabilities(
    ops: Ops,
    head: BoundMatrix,
    x: Input,
    targets: Sequence[int],
    soften: Callable[[Array], None],
) -> Array:
    """Of one target for each row of x, float64: log-sum-exp over the vocabulary, merged slab by
    slab.
    """
    wanted = np.asarray(targets)
    n = len(wanted)
    slab = np.empty((n, max(256, SCORE_SLAB_VALUES // n // 16 * 16)), np.float32)
    peak = np.full(n, -np.inf)
    total = np.zeros(n)
    chosen = np.zeros(n)
    for row, values in ops.slabs(head, x, slab):
        exact = np.ascontiguousarray(values)
        soften(exact)
        here = (wanted >= row) & (wanted < row + exact.shape[1])
        chosen[here] = exact[here, wanted[here] - row]
        new_peak = np.maximum(peak, exact.max(1))
        shifted = exact - new_peak[:, None].astype(np.float32)
        total = total * np.exp(peak - new_peak) + np.exp(shifted).sum(1, dtype=np.float64)
        peak = new_peak
    return chosen - (peak + np.log(total))


def inverse_frequencies(rope: Rope) -> Array:
    """Angle per position of each pair, float64 [dim / 2]."""
    powers = np.arange(0, rope.dim, 2, dtype=np.float64) / rope.dim
    frequencies = rope.scale / rope.base**powers
    if rope.factors is not None:
        frequencies = frequencies / np.asarray(rope.factors, np.float64)
    return frequencies
