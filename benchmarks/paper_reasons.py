"""Why ours differ from the paper's figures: the arithmetic in sentences, every number measured."""

from collections.abc import Callable, Sequence
from statistics import median

from arithmetic import Cell, cells
from candidates import ATTENTION_FIRST, FFN_FIRST, LAYER, MMAP, ROWS, SERIAL_LAYER, TENSOR
from measuring import ModelRecord
from paper import ASYNC_LITTLE, ASYNC_MORE, title
from phrasing import count, ends, percents, span, table

Cells = Sequence[tuple[ModelRecord, Cell]]


def reasons(models: Sequence[ModelRecord]) -> list[str]:
    found = [(model, cell) for model in models for cell in cells(model) if cell.compute_s]
    parts: Sequence[Callable[[Cells], str]] = (_formulas, _overlap, _mmap, _balance, _flexible)
    return [text for part in parts if (text := part(found))]


def _formulas(found: Cells) -> str:
    if not found:
        return "No serial run: computing was not measured, so nothing can be expected."
    reading = sum(
        cell.compute_s * cell.disk_bytes_per_s < (cell.sweep_read_bytes(SERIAL_LAYER) or 0)
        for _, cell in found
        if cell.compute_s
    )
    return (
        "A token needs c seconds of computing (the serial runs' time less their time for reads) "
        "and s bytes of reading from a disk of b bytes/s. A serial reader takes c + s/b, a "
        "prefetching one max(c, s/b). Where whole leading layers are locked, a share k of the "
        "weights, computing them overlaps with reading only as far as the ring of r bytes goes: "
        "k c + max((1 − k) c, (s − min(r, b k c)) / b). mmap takes c + m/b, m being what it was "
        "seen to read. "
        f"Reading is longer than computing at {reading} of {count(len(found), 'budget')}."
    )


def _overlap(found: Cells) -> str:
    shares, rates, gains, own = [], [], [], []
    for _, cell in found:
        streamed, compute_s = cell.sweep_read_bytes(SERIAL_LAYER), cell.compute_s
        gain = cell.gain(SERIAL_LAYER, LAYER)
        if streamed and compute_s and gain and cell.serial_bytes_per_s:
            read_s = streamed / cell.disk_bytes_per_s
            shares.append(min(compute_s, read_s) / max(compute_s, read_s))
            rates.append(cell.serial_bytes_per_s / cell.disk_bytes_per_s)
            gains.append(gain.median - 1)
            slow_s = compute_s + streamed / cell.serial_bytes_per_s
            own.append(slow_s / max(compute_s, read_s) - 1)
    if not shares:
        return ""
    return (
        "**Asynchronous over synchronous.** Overlap hides the smaller of computing and reading: it "
        "gains at most min(c, s/b) / max(c, s/b). The paper's "
        f"{percents(ASYNC_LITTLE)} and {percents(ASYNC_MORE)} need the smaller to be "
        f"{ASYNC_LITTLE[0]:.2f}–{ASYNC_LITTLE[1]:.2f} and {ASYNC_MORE[0]:.2f} or more of the "
        "larger (beyond 100 % overlap alone cannot go: there the reader itself became faster). "
        f"Here it is {span(shares, '.3f')}, so overlap can give {percents(ends(shares))}. A "
        f"reader with one request at a time got {span(rates, '.2f')} of the bare bandwidth of "
        f"several; with that the formulas give {percents(ends(own))} for balanced layers. "
        f"Measured: {percents(ends(gains))}."
    )


def _mmap(found: Cells) -> str:
    rows, needs, rates = [], [], []
    for model, cell in found:
        read, streamed = cell.sweep_read_bytes(MMAP), cell.sweep_read_bytes(ROWS)
        theirs, ours_s = cell.mmap_bytes_per_s, cell.tpot_s(ROWS)
        gain = cell.gain(MMAP, ROWS)
        if not (read and streamed and theirs and ours_s and gain):
            continue
        needs.append(read / model.shape.weight_bytes)
        rates.append(theirs / cell.disk_bytes_per_s)
        slower = streamed / ours_s / theirs
        row = (f"{ratio:.2f}" for ratio in (read / streamed, slower, gain.median))
        rows.append([title(model.shape), f"{cell.budget.percent:g} %", *row])
    if not rows:
        return "**mmap** was not measured (`--llamacpp`)."
    text = (
        f"**Over mmap.** mmap read {span(needs, '.2f')} of the weights for a token, ours what is "
        f"not locked; page faults brought them at {span(rates, '.2f')} of the bare bandwidth, and "
        "computing waits for each. The ratio is about the product of the two:"
    )
    head = ["model", "budget", "times the bytes", "times as slow a byte", "measured over mmap"]
    return "\n\n".join([text, table(head, rows)])


def _balance(found: Cells) -> str:
    early, gains = [], []
    for _, cell in found:
        compute_s, gain = cell.compute_s, cell.gain(LAYER, TENSOR)
        streamed = cell.sweep_read_bytes(LAYER)
        locked = [run.locked_bytes or 0 for run in cell.of(LAYER)]
        if compute_s and gain and streamed:
            share = median(locked) / (median(locked) + streamed)
            early.append(compute_s * share / (streamed / cell.disk_bytes_per_s))
            gains.append(gain.median - 1)
    if not early:
        return ""
    return (
        "**Balanced over layer-wise.** What balance can gain is the computing of the layers that "
        "are locked, k c, beside the reading of the others, s/b, where reading is the longer. Here "
        f"k c / (s/b) is {span(early, '.3f')}; the paper's 9.2–11.1 % need it to be about 0.1. "
        f"Measured: {percents(ends(gains))}."
    )


def _flexible(found: Cells) -> str:
    texts = []
    for name in (ATTENTION_FIRST, FFN_FIRST):
        more, gains = [], []
        for _, cell in found:
            theirs, tensor = cell.sweep_read_bytes(name), cell.sweep_read_bytes(TENSOR)
            gain = cell.gain(name, TENSOR)
            if theirs and tensor and gain:
                more.append(theirs / tensor - 1)
                gains.append(gain.median - 1)
        if more:
            texts.append(
                f"`{name}` streams {percents(ends(more))} more bytes than `tensor`; measured: "
                f"{percents(ends(gains))}."
            )
    if not texts:
        return ""
    return (
        "**Flexible over attention first and FFN first.** Where reading is the longer, a selection "
        "of tensors can gain only by the bytes that it leaves to stream. All of ours fill the "
        "budget, going on with the other kind of matrix when all of one are locked, and differ by "
        "the rest that no whole matrix fits: " + " ".join(texts)
    )
