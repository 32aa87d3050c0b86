"""From a user's options to what a device does and holds."""

from collections.abc import Callable
from dataclasses import replace

from flexinfer.errors import BudgetError, FlexInferError, OptionError
from flexinfer.executor.device import OpenDevice
from flexinfer.executor.device_probe import probe_device
from flexinfer.executor.model import Model
from flexinfer.executor.options import Options
from flexinfer.planner.choice import Chooser
from flexinfer.planner.device import DevicePlan, make_device_plan
from flexinfer.planner.hardware import Hardware
from flexinfer.planner.planner import MAX_SWEEP_TOKENS, Prediction, Workload
from flexinfer.planner.requested import AUTO, Requested, requested
from flexinfer.planner.search import Counts, least
from flexinfer.planner.strategies import split
from flexinfer.planner.tiers import DEVICE_OTHER_BYTES, Load
from flexinfer.units import format_bytes, parse_bytes

KV_TYPES = ("f16", "f32")  # that both processors know
Promise = Callable[[DevicePlan | None], Prediction]  # what the whole plan then promises


def check_device_options(options: Options) -> None:
    """Raises OptionError for an option that cannot take effect."""
    given = {
        "--vram": options.vram,
        "--strategy": options.strategy,
        "--prefill-strategy": options.prefill_strategy,
        "--decode-strategy": options.decode_strategy,
    }
    for option, value in given.items():
        if value is not None and options.device is None:
            raise OptionError(
                f"{option} takes effect only with a --device", "give one, or leave it"
            )
    if options.device is not None and options.kv_type not in KV_TYPES:
        raise OptionError(
            f"--kv-type {options.kv_type} cannot be used with a --device",
            f"give one of {', '.join(KV_TYPES)}",
        )


def plan_device(
    model: Model,
    options: Options,
    workload: Workload,
    device: OpenDevice,
    hardware: Hardware,
    budget_bytes: int,
    base_bytes: int,
    promise: Promise,
) -> DevicePlan | None:
    """The device's part for the strategy asked for; None where all is done by the host.
    `base_bytes` is what the process holds besides.

    Raises OptionError, BudgetError.
    """
    layers = len(model.spec.layers)
    name = AUTO if options.strategy is None else options.strategy
    asked = requested(name, options.prefill_strategy, options.decode_strategy, layers)
    if asked is None:
        seed = _estimated(model, options, workload, device, hardware, budget_bytes, base_bytes)
        return _best(model, options, workload, device, promise, seed)
    if not asked.needs_device:
        if options.vram is not None and options.strategy not in (None, AUTO):
            raise OptionError(
                "--vram cannot take effect: no layer is on the device", "leave it out"
            )
        return None
    vram_bytes = _vram_bytes(options, device)
    if asked.static:
        return _most_static(model, options, workload, device, vram_bytes)
    return _plan(model, options, workload, device, vram_bytes, asked)


def with_device(hardware: Hardware, device: OpenDevice, model: Model, options: Options) -> Hardware:
    """The machine with what its accelerator gives, by a look at it."""
    probed = probe_device(device, model, _vram_bytes(options, device))
    return replace(hardware, name=f"{hardware.name} with {device.name}", device=probed)


def _best(
    model: Model,
    options: Options,
    workload: Workload,
    device: OpenDevice,
    promise: Promise,
    seed: Counts,
) -> DevicePlan | None:
    """The plan that promises the least latency, near the seed and near those that are plain: what
    an estimate of the memory cannot know, real plans do. Raises what one was refused for where all
    are.
    """
    n, vram_bytes = len(model.spec.layers), _vram_bytes(options, device)
    parts: dict[Counts, DevicePlan | None] = {}
    refusals: list[FlexInferError] = []

    def latency_s(counts: Counts) -> float:
        asked = Requested(split(n, counts[0]), split(n, counts[1]))
        part = None
        try:
            if asked.needs_device:
                part = _plan(model, options, workload, device, vram_bytes, asked)
            found = promise(part)
        except (BudgetError, OptionError) as error:  # an option may be in vain in some plans
            refusals.append(error)
            return float("inf")
        parts[counts] = part
        return found.ttft_s + max(0, workload.new_tokens - 1) * found.tpot_s

    best = least(latency_s, (seed, (0, 0), (n, 0), (n, n)), n)
    if best is None:
        raise refusals[0]
    return parts[best]


def _estimated(
    model: Model,
    options: Options,
    workload: Workload,
    device: OpenDevice,
    hardware: Hardware,
    budget_bytes: int,
    base_bytes: int,
) -> Counts:
    """The best split for either phase, as far as memory can be estimated; nothing on the device
    where by that nothing fits.
    """
    load = Load(workload.prompt_tokens, workload.new_tokens, workload.context_tokens)
    chooser = Chooser(
        model.spec,
        model.weights,
        hardware,
        load,
        ram_bytes=budget_bytes,
        vram_bytes=_vram_bytes(options, device) + DEVICE_OTHER_BYTES - device.runtime_bytes,
        base_bytes=base_bytes,
        kv_type=options.kv_type,
    )
    try:
        placing = chooser.choose().placing
    except BudgetError:
        return 0, 0
    return placing.prefill_layers, placing.decode_layers


def _vram_bytes(options: Options, device: OpenDevice) -> int:
    """What was asked for, else all but a twentieth of what is free."""
    free = device.free_bytes
    if options.vram is None:
        if free is None:
            raise OptionError(
                f"--device {device.name} has no memory of its own to go by", "give --vram"
            )
        return free + device.runtime_bytes - free // 20
    vram_bytes = parse_bytes(options.vram)
    if free is not None and vram_bytes > free + device.runtime_bytes:
        raise BudgetError(
            f"--vram {format_bytes(vram_bytes)} ({vram_bytes} bytes) is more than the "
            f"{format_bytes(free)} ({free} bytes) free on {device.name}",
            "ask for less, or free some",
        )
    return vram_bytes


def _plan(
    model: Model,
    options: Options,
    workload: Workload,
    device: OpenDevice,
    vram_bytes: int,
    asked: Requested,
) -> DevicePlan:
    return make_device_plan(
        model.spec,
        model.weights,
        asked.prefill,
        asked.decode,
        vram_bytes=vram_bytes,
        prompt_tokens=workload.prompt_tokens,
        context_tokens=workload.context_tokens,
        max_sweep_tokens=MAX_SWEEP_TOKENS,
        kv_type=options.kv_type,
        lock=asked.lock,
        runtime_bytes=device.runtime_bytes,
    )


def _most_static(
    model: Model, options: Options, workload: Workload, device: OpenDevice, vram_bytes: int
) -> DevicePlan:
    """As many of the last layers as fit with their weights and caches. BudgetError where none."""
    layers = len(model.spec.layers)
    for count in range(layers, 0, -1):
        both = split(layers, count)
        try:
            plan = _plan(model, options, workload, device, vram_bytes, Requested(both, both))
        except BudgetError:
            if count == 1:
                raise
            continue
        if len(plan.locked_layers) == len(plan.cached_layers) == count:
            return plan
    raise BudgetError(
        f"not one layer fits into {format_bytes(vram_bytes)} of device memory with its cache",
        "give more --vram, or another --strategy",
    )
