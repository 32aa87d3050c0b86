"""Ops on any torch device: weights as raw blocks, dequantised there a tile at a time.

Products go through torch's own matmul, so their bits depend on their shapes; those are fixed by
`planner.tiles`. Fused products take raw blocks as they come: there no row's bits depend on another.
With `activations="int8"` activations are rounded as the CPU's kernels round them,
to compare with; by default they are not.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch.nn import functional

from flexinfer.formats.quants import BLOCK_TYPES
from flexinfer.models.spec import ModelSpec
from flexinfer.ops.base import BoundMatrix, Epilogue, Input, Span
from flexinfer.ops.torch_memory import host_bytes
from flexinfer.ops.torch_weights import DeviceWeights, Memory
from flexinfer.planner.placement import GROUP_ROWS
from flexinfer.planner.sizes import PAGE_TOKENS
from flexinfer.planner.tiles import CHUNK_VALUES, TOKEN_TILE, tile_rows
from flexinfer.streaming.prefetcher import Stream

Tensor = Any
Activations = Literal["float", "int8"]
_FLOAT32 = ("F32", "F16")  # weights that take float32 activations on the CPU, too


class Fused(Protocol):
    """Products with raw blocks. A row's bits are the same in whatever piece it comes."""

    def knows(self, type_id: int) -> bool: ...

    def multiply(
        self,
        type_id: int,
        data: Tensor,
        first: int,
        x: Tensor,
        out: Tensor,
        *,
        interleaved: bool,
        epilogue: Epilogue = Epilogue.STORE,
        bias: Tensor | None = None,
    ) -> None:
        """x [tokens, columns] times rows `first` .. of a matrix: out [tokens, rows]."""
        ...


class Rows(Protocol):
    """The embedding table."""

    def gather(self, ids: Sequence[int], out: np.ndarray[Any, Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class DeviceCache:
    """Keys and values of one sequence, position after position: for each layer two tensors
    [kv_heads, context, head_dim]. Layers whose cache is kept on the host share theirs.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]


class TorchOps:
    """Ops on the device of `memory`; what streams comes from `stream`. Arrays are tensors there.

    `matmul` is the type that products are computed in: torch.float32, or a shorter one where the
    device is fast at it. `fused` multiplies the types that it knows, if not by int8 activations.
    """

    def __init__(
        self,
        device: Any,
        spec: ModelSpec,
        memory: Memory,
        cache: DeviceCache,
        embedding: Rows | None,
        stream: Stream | None,
        *,
        activations: Activations = "float",
        matmul: Any = torch.float32,
        fused: Fused | None = None,
    ) -> None:
        self._device = device
        self._spec = spec
        self._cache = cache
        self._embedding = embedding
        self._int8 = activations == "int8"
        self._matmul = matmul
        self._fused = None if self._int8 else fused
        self._weights = DeviceWeights(device, memory, stream, matmul)
        # What goes back to the host has a stream of its own, beside computing.
        self._back = torch.cuda.Stream(device) if device.type == "cuda" else None

    def embed(self, tokens: Sequence[int], factor: float, out: Tensor) -> None:
        assert self._embedding is not None
        rows = np.empty((len(tokens), self._spec.dim), np.float32)
        self._embedding.gather(tokens, rows)
        out.copy_(torch.from_numpy(rows))
        if factor != 1.0:
            out.mul_(factor)

    def quantise(self, x: Tensor, space: Tensor, matrices: Sequence[BoundMatrix]) -> Input:
        return Input(x, None)  # rounded tile by tile, if at all

    def linear(
        self,
        matrix: BoundMatrix,
        x: Input,
        out: Tensor,
        epilogue: Epilogue = Epilogue.STORE,
        bias: Tensor | None = None,
    ) -> None:
        if self._fused is not None and self._fused.knows(matrix.type_id):
            for piece in self._weights.pieces(matrix):
                data = self._weights.raw(matrix, piece, 0, piece.rows)
                columns = slice(piece.row, piece.row + piece.rows)
                for tokens in _slices(len(x.x), TOKEN_TILE):
                    self._fused.multiply(
                        matrix.type_id, data, piece.row, x.x[tokens], out[tokens, columns],
                        interleaved=piece.interleaved, epilogue=epilogue,
                        bias=None if bias is None else bias[columns],
                    )  # fmt: skip
            return
        for row, weights in self._weights.tiles(matrix):
            columns = slice(row, row + len(weights))
            for tokens in _slices(len(x.x), TOKEN_TILE):
                y = self._product(matrix, x.x[tokens], weights)
                if bias is not None:
                    y.add_(bias[columns])
                _finish(out[tokens, columns], y, epilogue)

    def slabs(
        self, matrix: BoundMatrix, x: Input, out: np.ndarray[Any, Any]
    ) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
        """As Ops has it, but that `out` and the values are the host's."""
        if self._fused is not None and self._fused.knows(matrix.type_id):
            yield from self._fused_slabs(self._fused, matrix, x, out)
            return
        for row, weights in self._weights.tiles(matrix):
            for part in _slices(len(weights), out.shape[1]):
                slab = out[:, : part.stop - part.start]
                for tokens in _slices(len(x.x), TOKEN_TILE):
                    y = self._product(matrix, x.x[tokens], weights[part])
                    torch.from_numpy(slab[tokens]).copy_(y)
                yield row + part.start, slab

    def _fused_slabs(
        self, fused: Fused, matrix: BoundMatrix, x: Input, out: np.ndarray[Any, Any]
    ) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
        step = min(out.shape[1], tile_rows(matrix.rows, matrix.columns))
        step = max(GROUP_ROWS, step // GROUP_ROWS * GROUP_ROWS)
        for piece in self._weights.pieces(matrix):
            for part in _slices(piece.rows, step):
                row, count = piece.row + part.start, part.stop - part.start
                data = self._weights.raw(matrix, piece, part.start, count)
                slab = out[:, :count]
                for tokens in _slices(len(x.x), TOKEN_TILE):
                    y = torch.empty((tokens.stop - tokens.start, count), device=self._device)
                    fused.multiply(
                        matrix.type_id, data, row, x.x[tokens], y, interleaved=piece.interleaved
                    )
                    torch.from_numpy(slab[tokens]).copy_(y)
                yield row, slab

    def pass_over(self, matrix: BoundMatrix) -> None:
        for _ in self._weights.pieces(matrix):
            pass

    def _product(self, matrix: BoundMatrix, x: Tensor, weights: Tensor) -> Tensor:
        """float32 [tokens, rows of the tile]."""
        name = BLOCK_TYPES[matrix.type_id].name
        if self._int8 and name not in _FLOAT32:
            x = x.to(torch.bfloat16).to(torch.float32) if name == "BF16" else _through_int8(x)
            # To compare with: in float64 the order in which a processor adds hardly shows.
            return torch.mm(x.double(), weights.T.double()).float()
        return torch.mm(x.to(self._matmul), weights.T).to(torch.float32)

    def abandon_sweep(self) -> None:
        self._weights.abandon_sweep()

    def receive(self, values: np.ndarray[Any, Any], out: Tensor) -> None:
        out.copy_(torch.from_numpy(values))

    def give(self, x: Tensor, out: np.ndarray[Any, Any]) -> None:
        torch.from_numpy(out).copy_(x)

    def cache_page(self, layer: int, address: int, page: int, first: int, last: int) -> None:
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        heads, head_dim = keys.shape[0], keys.shape[2]
        size = heads * head_dim * PAGE_TOKENS * keys.element_size()
        data = host_bytes(address, 2 * size).to(self._device)
        begin = page * PAGE_TOKENS
        here, inside = slice(first, last), slice(first - begin, last - begin)
        # In a page keys lie position by position for each element of a head, values the other way.
        k = data[:size].view(keys.dtype).view(heads, head_dim, PAGE_TOKENS)
        v = data[size:].view(values.dtype).view(heads, PAGE_TOKENS, head_dim)
        keys[:, here].copy_(k[:, :, inside].transpose(1, 2))
        values[:, here].copy_(v[:, inside])

    def reached(self) -> Any:
        if self._back is None:
            return None
        event = torch.cuda.Event()
        event.record()
        return event

    def cached(self, layer: int, first: int, last: int, reached: Any) -> tuple[Any, Any]:
        both = (self._cache.keys[layer], self._cache.values[layer])
        with nullcontext() if self._back is None else torch.cuda.stream(self._back):
            if self._back is not None:
                self._back.wait_event(reached)
            k, v = (
                c[:, first:last]
                .transpose(0, 1)
                .flatten(1)
                .to("cpu", torch.float32)
                .contiguous()
                .numpy()
                for c in both
            )
        return k, v

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        for rows in _chunks(x):
            torch.mul(_normed(x[rows], eps), weight, out=out[rows])

    def rms_norm_add(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        for rows in _chunks(x):
            out[rows].add_(_normed(x[rows], eps).mul_(weight))

    def rope_angles(
        self,
        frequencies: np.ndarray[Any, Any],
        positions: np.ndarray[Any, Any],
        magnitude: float,
        out: Tensor,
    ) -> None:
        angles = positions[:, None] * frequencies
        turns = magnitude * np.concatenate((np.cos(angles), np.sin(angles)), axis=1)
        out.copy_(torch.from_numpy(turns.astype(np.float32)))

    def rope(self, x: Tensor, heads: int, head_dim: int, angles: Tensor, adjacent: bool) -> None:
        pairs = angles.shape[1] // 2
        for rows in _chunks(x):
            turning = x[rows].view(-1, heads, head_dim)[..., : 2 * pairs]
            cos, sin = angles[rows, None, :pairs], angles[rows, None, pairs:]
            if adjacent:
                a, b = turning[..., 0::2], turning[..., 1::2]
            else:
                a, b = turning[..., :pairs], turning[..., pairs:]
            turned = a * cos - b * sin
            b.copy_(b * cos + a * sin)
            a.copy_(turned)

    def scale(self, x: Tensor, factor: float) -> None:
        x.mul_(factor)

    def softcap(self, x: Tensor, cap: float) -> None:
        x.div_(cap).tanh_().mul_(cap)

    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        layer: int,
        spans: Sequence[Span],
        window_tokens: int | None,
    ) -> None:
        spec = self._spec
        (span,) = spans  # the cache is one sequence's
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        end = span.start + span.count
        for cache, new in ((keys, k), (values, v)):
            new = new.view(-1, spec.kv_heads, spec.head_dim).transpose(0, 1)
            cache[:, span.start : end].copy_(new)
        for tokens in _slices(span.count, TOKEN_TILE):
            first, last = span.start + tokens.start, span.start + tokens.stop
            seen = slice(0 if window_tokens is None else max(0, first + 1 - window_tokens), last)
            mask = _mask(first, last, seen.start, window_tokens, self._device)
            # Heads that share keys side by side: [kv_heads, sharing heads, tokens, head_dim].
            queries = q[tokens].view(-1, spec.kv_heads, spec.heads // spec.kv_heads, spec.head_dim)
            attended = self._attend(
                queries.permute(1, 2, 0, 3), keys[:, seen], values[:, seen], mask
            )
            out[tokens].view(queries.shape).copy_(attended.permute(2, 0, 1, 3))

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        scale, cap = self._spec.attention_scale, self._spec.attention_softcap
        if self._device.type == "cpu":  # no fast float16 there
            keys, values = keys.to(torch.float32), values.to(torch.float32)
        if cap is None:
            shape = (*q.shape[:2], *keys.shape[1:])
            return functional.scaled_dot_product_attention(
                q.to(keys.dtype),
                keys[:, None].expand(shape),
                values[:, None].expand(shape),
                attn_mask=mask,
                scale=scale,
            )
        out = torch.empty_like(q)
        for head in range(len(q)):  # one at a time: all their scores would be large
            scores = (q[head].to(keys.dtype) @ keys[head].T).to(torch.float32)
            scores.mul_(scale / cap).tanh_().mul_(cap)
            if mask is not None:
                scores.masked_fill_(~mask, -torch.inf)
            out[head] = torch.softmax(scores, -1).to(values.dtype) @ values[head]
        return out


def _slices(total: int, step: int) -> Iterator[slice]:
    for begin in range(0, total, step):
        yield slice(begin, min(total, begin + step))


def _chunks(x: Tensor) -> Iterator[slice]:
    """Rows of x, as many at once as temporary memory is planned for."""
    return _slices(x.shape[0], max(1, CHUNK_VALUES // x.shape[1]))


def _normed(x: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(1, keepdim=True).add_(eps))


def _finish(out: Tensor, y: Tensor, epilogue: Epilogue) -> None:
    match epilogue:
        case Epilogue.STORE:
            out.copy_(y)
        case Epilogue.ADD:
            out.add_(y)
        case Epilogue.SILU_MUL:
            out.copy_(functional.silu(out).mul_(y))
        case Epilogue.GELU_MUL:
            out.copy_(functional.gelu(out, approximate="tanh").mul_(y))


def _through_int8(x: Tensor) -> Tensor:
    """What csrc/quantize.h makes of x, as float32 again."""
    blocks = x.reshape(len(x), -1, 32)
    most = blocks.abs().amax(2, keepdim=True)
    integers = (blocks * (127 / most)).round_()
    values = torch.where(most < 2.0**-100, 0.0, integers.mul_(most / 127))
    return values.view(x.shape)


def _mask(
    first: int, last: int, seen_from: int, window_tokens: int | None, device: Any
) -> Tensor | None:
    """Which of the keys seen_from .. last - 1 each token first .. sees: bool [tokens, keys]; None
    where it is all of them.
    """
    if last - first == 1:
        return None
    tokens = torch.arange(first, last, device=device)[:, None]
    keys = torch.arange(seen_from, last, device=device)
    mask = keys <= tokens
    return mask if window_tokens is None else mask & (keys > tokens - window_tokens)
