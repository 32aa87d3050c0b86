"""The executor over two processors: a sweep is one loop over the layers, each on the one that the
phase's strategy gives it to, each weight taken from wherever it is.
"""

from collections.abc import Callable, Sequence

import numpy as np

from flexinfer.executor.executor import HEAD, inverse_frequencies, log_probabilities
from flexinfer.executor.sides import Device, Side
from flexinfer.models.spec import Rope
from flexinfer.ops.base import Array, Input, Span
from flexinfer.planner.device import PhaseName


class HybridExecutor:
    """Runs sweeps of a decoder on the host and on a device, as Executor does on the host alone."""

    def __init__(self, host: Side, device: Device) -> None:
        self._host = host
        self._device = device
        self._spec = host.decoder.spec
        self._ropes = tuple(dict.fromkeys(layer.rope for layer in self._spec.layers if layer.rope))
        self._frequencies = tuple(inverse_frequencies(rope) for rope in self._ropes)
        self.sweeps = 0

    @property
    def sweep_tokens(self) -> int:
        return self._host.workspace.tokens

    @property
    def layers(self) -> int:
        return len(self._spec.layers)

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
        cache. `phase` says which strategy it goes by.

        Returns the logits [vocabulary] of the last token, a view that the next sweep overwrites,
        or None. An exception (Ctrl-C, a read error) leaves the stream at the beginning of a sweep;
        the cache rows of the sweep's tokens are then undefined.
        """
        try:
            side, hidden = self._layers(tokens, spans, on_layer, phase)
            head = side.decoder.matrices[HEAD]
            if not logits:
                side.ops.pass_over(head)
                self._device.cache.finish()
                return None
            values = side.workspace.logits
            side.ops.linear(head, self._head_input(side, hidden[-1:]), values)
            out = self._host.workspace.logits
            if side is not self._host:
                self._device.ops.give(values, out)
            self._soften(out)
            self._device.cache.finish()
            return out[0]
        except BaseException:
            self._abandon()
            raise

    def score(self, tokens: Sequence[int], spans: Sequence[Span], first: int) -> Array:
        """Log-probabilities of tokens[first + 1:], each given all before it: float64 [len(tokens)
        - first - 1].
        """
        try:
            side, hidden = self._layers(tokens, spans, None, "prefill")
            x = self._head_input(side, hidden[first:-1])
            head = side.decoder.matrices[HEAD]
            scores = log_probabilities(side.ops, head, x, tokens[first + 1 :], self._soften)
            self._device.cache.finish()
            return scores
        except BaseException:
            self._abandon()
            raise

    def _layers(
        self,
        tokens: Sequence[int],
        spans: Sequence[Span],
        on_layer: Callable[[int], None] | None,
        phase: PhaseName,
    ) -> tuple[Side, Array]:
        """The side that computed the last layer, and its hidden state."""
        n, device = len(tokens), self._device
        device.pipeline.enter(phase)
        sides = self._sides(phase)
        buffers = {side: side.workspace.buffers(n) for side in sides}
        angles = {side: self._angles(side, n, spans) for side in buffers}
        at = sides[0]
        at.ops.embed(tokens, self._spec.embedding_scale, buffers[at].hidden)
        for index, layer in enumerate(self._spec.layers):
            if on_layer:
                on_layer(index)
            side = sides[index]
            b = buffers[side]
            if side is not at:
                self._hand_over(buffers[at].hidden, b.hidden, side)
                at = side
            turns = angles[side][layer.rope] if layer.rope else None
            processor = device.processors[phase][index]
            device.cache.before(index, processor, spans)
            side.decoder.layer(side.ops, index, b, spans, turns)
            device.cache.after(index, processor, spans)
        self.sweeps += 1
        return at, buffers[at].hidden

    def _sides(self, phase: PhaseName) -> tuple[Side, ...]:
        """Of each layer."""
        device = self._device
        both = {"host": self._host, "device": device.sides[phase]}
        return tuple(both[processor] for processor in device.processors[phase])

    def _hand_over(self, hidden: Array, out: Array, side: Side) -> None:
        if side is self._host:
            self._device.ops.give(hidden, out)
        else:
            self._device.ops.receive(hidden, out)

    def close(self) -> None:
        """No sweep is under way, and none follows."""
        self._device.cache.close()

    def _abandon(self) -> None:
        self._device.ops.abandon_sweep()  # first: what moves the cache may wait for it
        self._device.cache.abandon()
        self._host.ops.abandon_sweep()

    def _angles(self, side: Side, n: int, spans: Sequence[Span]) -> dict[Rope, Array]:
        positions = np.concatenate([np.arange(s.start, s.start + s.count) for s in spans])
        angles = {}
        for i, (rope, frequencies) in enumerate(zip(self._ropes, self._frequencies, strict=True)):
            space = side.workspace.angles[i][: n * rope.dim].reshape(n, rope.dim)
            side.ops.rope_angles(frequencies, positions.astype(np.int32), rope.magnitude, space)
            angles[rope] = space
        return angles

    def _head_input(self, side: Side, hidden: Array) -> Input:
        n, dim = hidden.shape
        x = side.workspace.narrow[: n * dim].reshape(n, dim)
        side.decoder.head(side.ops, hidden, x)
        space = side.workspace.quantised_rows(n, dim)
        return side.ops.quantise(x, space, (side.decoder.matrices[HEAD],))

    def _soften(self, logits: Array) -> None:
        if self._spec.logit_softcap:
            self._host.ops.softcap(logits, self._spec.logit_softcap)
