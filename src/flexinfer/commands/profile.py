"""`flexinfer profile`: measure this machine once, so that plans and predictions need not guess."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from flexinfer.commands.console import Console
from flexinfer.commands.figures import aligned, bytes_rate, count
from flexinfer.commands.models import model_path
from flexinfer.errors import OptionError
from flexinfer.executor.profile import measure_disk, measure_host
from flexinfer.executor.profiles import (
    Key,
    Profile,
    as_table,
    disk_place,
    load_profile,
    profile_key,
    store_profile,
)
from flexinfer.executor.session import kernel_context
from flexinfer.executor.setup import thread_count
from flexinfer.formats.open import open_checkpoint
from flexinfer.models.from_gguf import spec_from_gguf


def profile(args: argparse.Namespace, console: Console) -> int:
    """Without MODEL no disk is measured; what is stored of other disks stays."""
    threads = thread_count(args.threads)
    shapes, place, path = [], None, None
    if args.model is not None:
        checkpoint = open_checkpoint(model_path(args.model))
        spec = spec_from_gguf(checkpoint)
        shapes = [(spec.head_dim, spec.heads // spec.kv_heads)]
        path = max(checkpoint.tensors.values(), key=lambda t: t.size_bytes).path
        place = disk_place(path)
    context = kernel_context(threads)
    key = profile_key(context)
    stored = load_profile(key)
    disks = dict(stored.disks) if stored else {}

    def progress(what: str, done: int, total: int) -> None:
        console.status(f"measuring {what} · {done} of {total}")

    if path is not None and place is not None:
        console.status("measuring the disk")
        disks[place] = measure_disk(path, context)
    found = Profile(measure_host(context, shapes, progress), disks)
    console.clear()
    try:
        store_profile(key, found)
    except OSError as error:
        raise OptionError(
            f"the profile cannot be stored in {key.path.parent}: {error.strerror}",
            "give another folder by XDG_CACHE_HOME",
        ) from error
    if args.json:
        print(json.dumps(as_table(key, found) | {"path": str(key.path), "place": place}))
    else:
        print("\n".join(show(key, found, place)))
    return 0


def show(key: Key, profile: Profile, place: str | None) -> Iterator[str]:
    host = profile.host
    yield f"{key.processor}, {count(key.threads, 'thread')}, {key.isa}"
    yield f"memory     {bytes_rate(host.memory_bytes_per_s)}"
    if place is None:
        yield "disk       not measured: name a MODEL to measure the disk under it"
    else:
        disk = profile.disks[place]
        yield (
            f"disk       {bytes_rate(disk.bytes_per_s)} with {count(disk.depth, 'read')} at once, "
            f"{bytes_rate(disk.at(1))} one by one: {place}"
        )
    yield (
        f"the engine {host.glue.layer_s * 1e6:.0f} µs a layer, "
        f"{host.glue.called_layer_s * 1e6:.0f} of many tokens, "
        f"{host.glue.sweep_s * 1e6:.0f} µs a sweep"
    )
    yield ""
    first = next(iter(host.kernels.values()))
    tokens = [count for count, _ in first.ops_per_s[1:]]  # one token's are beside, as bytes
    rows = [("weights", "locked GB/s", "streamed", *(f"{n} tokens Gop/s" for n in tokens))]
    for name, rates in host.kernels.items():
        numbers = (
            rates.bytes_per_s,
            rates.streamed_bytes_per_s,
            *(r for _, r in rates.ops_per_s[1:]),
        )
        rows.append((name, *(f"{number / 1e9:.3g}" for number in numbers)))
    yield from aligned(rows)
    yield ""
    rows = [("attention", "1 token Gop/s", "prompt")]
    for shape in host.attention:
        name = f"heads of {shape.head_dim}, {shape.group} to a key, {shape.kv_type}"
        rates_of = (shape.one_ops_per_s, shape.many_ops_per_s)
        rows.append((name, *(f"{rate / 1e9:.3g}" for rate in rates_of)))
    yield from aligned(rows)
    yield ""
    yield f"stored in {_short(key.path)}; `plan` and `run` predict from it"


def _short(path: Path) -> str:
    try:
        home = Path.home()
    except RuntimeError:  # a user without one, as in a container
        return str(path)
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
