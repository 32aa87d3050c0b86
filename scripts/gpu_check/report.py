"""What was found, as text: a line for each stage, then tables."""

from collections.abc import Iterable, Sequence
from typing import Any

from stages import Outcome, Row

MISSING = "–"
WAYS = ("int8", "torch", "fused")  # of computing: agreement.py


def headline(machine: Row, commit: str) -> str:
    cuda = f" for CUDA {machine['cuda']}" if machine["cuda"] else ""
    driver = f", driver {machine['driver']}" if machine["driver"] else ""
    return (
        f"{machine['device']}{driver}, torch {machine['torch']}{cuda}, Python {machine['python']}, "
        f"{machine['cpus']} CPUs, commit {commit}"
    )


def line(outcome: Outcome) -> str:
    """The first line of an error is shown here; all of it comes below."""
    text = outcome.note if outcome.ok else str(outcome.error).splitlines()[0]
    mark = "ok    " if outcome.ok else "FAILED"
    return f"{mark} {outcome.name:<28} {outcome.seconds:6.1f} s  {text}".rstrip()


def errors(outcomes: Iterable[Outcome]) -> list[str]:
    """Those of more than a line, whole."""
    return [
        f"{outcome.name}:\n{outcome.error}"
        for outcome in outcomes
        if outcome.error and len(outcome.error.splitlines()) > 1
    ]


def agreement(rows: Sequence[Row]) -> list[str]:
    parts = ("product", "logit")
    return table(
        "Beside the CPU path: the largest difference, as a part of the largest value; with int8 "
        "activations, as users run it by torch, and by the fused kernels",
        ("type", *(f"{part}, {way}" for way in WAYS for part in parts), "runs", ""),
        [
            (
                row["type"],
                *(_part(row.get(f"{part}_{way}")) for way in WAYS for part in parts),
                row.get("runs", MISSING),
                "FAILED" if "error" in row else "",
            )
            for row in rows
        ],
    )


def rates(row: Row) -> list[str]:
    link = [
        ("host → device, pageable", _giga(row["pageable_to_device_bytes_per_s"])),
        ("host → device, pinned by torch", _giga(row["pinned_to_device_bytes_per_s"])),
        ("host → device, our arena, our copies", _giga(row["ours_to_device_bytes_per_s"])),
        ("host → device, as probed for predictions", _giga(row["probed_to_device_bytes_per_s"])),
        ("… a transfer's latency", f"{1e6 * row['probed_to_device_latency_s']:.3g} µs"),
        ("device → host, as probed for predictions", _giga(row["probed_to_host_bytes_per_s"])),
        ("asking for a layer's operations", f"{1e6 * row['probed_layer_s']:.3g} µs"),
        ("device → host, pinned by torch", _giga(row["pinned_to_host_bytes_per_s"])),
        ("device memory, copied", _giga(row["memory_bytes_per_s"])),
        (
            f"product of {row['matmul_type']}, square",
            f"{row['matmul_ops_per_s'] / 1e12:.3g} TFLOP/s",
        ),
    ]
    types = [
        (
            name,
            _giga(found["bytes_per_s"]),
            _giga(found["streamed_bytes_per_s"]),
            f"{found['ops_per_s'] / 1e12:.3g} TFLOP/s",
        )
        for name, found in row["types"].items()
    ]
    return [
        *table("Link and device", ("what", "rate"), link),
        "",
        *table(
            "Our products on the device, as probed for predictions",
            ("type", "1 token, as in the file", "interleaved", "256 tokens"),
            types,
        ),
    ]


def speed(title: str, rows: Sequence[tuple[str, Row]]) -> list[str]:
    """TTFT and TPOT, measured and predicted."""
    columns = (
        *("strategy", "TTFT", "predicted", "TPOT", "predicted"),
        *("over the link", "layers locked", "device memory", "of --vram"),
    )
    return table(title, columns, [(name, *_speed(row)) for name, row in rows])


def _speed(row: Row) -> tuple[str, ...]:
    if "ttft_s" not in row:
        return ("FAILED", *[MISSING] * 7)
    peak = row.get("peak_device_bytes") or row.get("peak_tensor_bytes")
    return (
        _seconds(row["ttft_s"]),
        _seconds(row.get("predicted_ttft_s")),
        _seconds(row["tpot_s"]),
        _seconds(row.get("predicted_tpot_s")),
        _size(row.get("link_bytes")),
        str(row.get("device_locked_layers", MISSING)),
        _size(peak),
        _size(row.get("vram_bytes")),
    )


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """In Markdown, columns aligned."""
    cells = [list(columns), *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return [title, "", *lines]


def _part(value: float | None) -> str:
    return MISSING if value is None else f"{value:.1e}"


def _seconds(value: float | None) -> str:
    if value is None:
        return MISSING
    return f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"


def _giga(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.3g} GB/s"


def _size(value: int | None) -> str:
    return MISSING if value is None else f"{value / 2**20:,.0f} MiB"
