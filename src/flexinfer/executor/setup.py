"""From a user's options to a plan: the budget that is really there, the defaults, the probe of
the machine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flexinfer import _kernels
from flexinfer.errors import OptionError, PromptError
from flexinfer.executor.device import OpenDevice, open_device
from flexinfer.executor.device_setup import check_device_options, plan_device, with_device
from flexinfer.executor.model import Model
from flexinfer.executor.options import Options
from flexinfer.executor.probe import probe
from flexinfer.executor.profiles import disk_place, load_profile, profile_key
from flexinfer.executor.session import kernel_context
from flexinfer.formats.quants import BlockType
from flexinfer.heap import trim_heap
from flexinfer.memory.budget import (
    Availability,
    available_memory,
    check_budget,
    cpus_available,
    default_budget,
    peak_resident_bytes,
    resident_bytes,
    usable_bytes,
)
from flexinfer.memory.ledger import Category
from flexinfer.planner.cutting import request_bytes
from flexinfer.planner.device import DevicePlan
from flexinfer.planner.device_prediction import predict_device
from flexinfer.planner.hardware import Hardware
from flexinfer.planner.planner import Plan, Prediction, Workload, make_plan, predict
from flexinfer.planner.ring import check_reading
from flexinfer.planner.sizes import PAGE_TOKENS, Sizes
from flexinfer.streaming.probe import DEPTHS, probe_disk
from flexinfer.units import parse_bytes

BASE = (Category.INTERPRETER, Category.TOKENIZER, Category.STAND_IN)
CHAT_CONTEXT_TOKENS = 4096
MAX_THREADS = 1024  # each takes a stack, and scratch memory
CONTEXT_SHARE = 4  # a chat's default context takes at most this part of the budget


@dataclass(frozen=True, slots=True)
class Machine:
    """What was found out about where a run is to be."""

    hardware: Hardware
    available: Availability
    context: _kernels.Context
    device: OpenDevice | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, what it was made from and what it promises, and the threads that will run it."""

    plan: Plan
    hardware: Hardware
    prediction: Prediction
    available: Availability
    context: _kernels.Context
    device: OpenDevice | None = None

    @property
    def emulated(self) -> bool:
        """Whether the device is none that its figures could be of."""
        return self.device is not None and self.device.emulates is not None


def plan_run(
    model: Model, options: Options, prompt_tokens: int | None = None, new_tokens: int | None = None
) -> Planned:
    """Decide everything about a run and say how fast it will be; nothing is loaded.

    Without token counts it is planned as a chat: a prompt of half the context. Raises BudgetError,
    OptionError.
    """
    available = available_memory()
    budget = default_budget(available)
    if options.ram is not None:
        budget = parse_bytes(options.ram)
        check_budget(budget, available, options.force)
    check_reading(options.prefetch, options.prefetch_window, options.io_threads)
    context = kernel_context(thread_count(options.threads))
    check_device_options(options)
    device = open_device(options.device) if options.device is not None else None
    sizes = Sizes(model.spec, model.weights, options.kv_type)
    workload = _workload(sizes, options.ctx, budget, prompt_tokens, new_tokens)
    depths = DEPTHS if options.io_threads is None else (options.io_threads,)
    spare = usable_bytes(budget) - resident_bytes()
    hardware = this_machine(model, sizes.kv_block_type, context, spare, depths)
    trim_heap()  # how much the probe takes depends on the budget; what stays must not
    peak = peak_resident_bytes()
    if device:
        hardware = with_device(hardware, device, model, options)
    base = {
        Category.INTERPRETER: max(0, resident_bytes() - model.tokenizer_bytes),
        Category.TOKENIZER: model.tokenizer_bytes,
    }
    machine = Machine(hardware, available, context, device)
    peak_bytes = peak if peak > model.earlier_peak_bytes else 0
    return plan_on(machine, model, options, workload, budget, base, peak_bytes)


def plan_on(
    machine: Machine,
    model: Model,
    options: Options,
    workload: Workload,
    budget_bytes: int,
    base_bytes: Mapping[Category, int],
    peak_bytes: int = 0,
) -> Planned:
    """The plan on a machine that was looked at before; `base_bytes` and `peak_bytes` as for
    make_plan. Raises BudgetError, OptionError.
    """
    hardware, device = machine.hardware, machine.device

    def divide(part: DevicePlan | None) -> Plan:
        stands = part is not None and device is not None and device.stand_in
        stand_in = {Category.STAND_IN: part.total_bytes} if part and stands else {}
        return make_plan(
            model.spec,
            model.weights,
            workload,
            hardware,
            budget_bytes=budget_bytes,
            base_bytes={**base_bytes, **stand_in},
            peak_bytes=peak_bytes,
            kv_type=options.kv_type,
            policy=options.policy,
            prefetch=options.prefetch,
            prefetch_window=options.prefetch_window,
            io_threads=options.io_threads,
            device=part,
        )

    def promise(part: DevicePlan | None) -> Prediction:
        return _predict(model, divide(part), hardware)

    part = None
    if device:
        base = sum(base_bytes.values())
        part = plan_device(model, options, workload, device, hardware, budget_bytes, base, promise)
    plan = divide(part)
    return Planned(
        plan,
        hardware,
        _predict(model, plan, hardware),
        machine.available,
        machine.context,
        device,
    )


def replan(
    model: Model,
    planned: Planned,
    *,
    budget_bytes: int | None = None,
    workload: Workload | None = None,
) -> Planned:
    """The same with another budget or workload, nothing measured again and the ring chosen anew.
    Raises BudgetError.
    """
    plan = planned.plan
    changed = make_plan(
        model.spec,
        model.weights,
        workload or plan.workload,
        planned.hardware,
        budget_bytes=budget_bytes or plan.budget_bytes,
        base_bytes={c: plan.parts[c] for c in BASE if c in plan.parts},
        kv_type=plan.kv_type,
        policy=plan.policy,
        prefetch=plan.prefetch,
        device=plan.device,
    )
    prediction = _predict(model, changed, planned.hardware)
    return replace(planned, plan=changed, prediction=prediction)


def _predict(model: Model, plan: Plan, hardware: Hardware) -> Prediction:
    if plan.device:
        return predict_device(model.spec, model.weights.matrices, plan, hardware)
    return predict(model.spec, plan, hardware)


def thread_count(asked: int | None) -> int:
    """As many as asked for, else the processors available. Raises OptionError."""
    if asked is not None and not 1 <= asked <= MAX_THREADS:
        raise OptionError(
            f"--threads is {asked}; it must be 1 to {MAX_THREADS}",
            "leave it out to use the processors available",
        )
    return asked or cpus_available()


def this_machine(
    model: Model,
    kv_type: BlockType,
    context: _kernels.Context,
    spare_bytes: int,
    depths: Sequence[int],
) -> Hardware:
    """The stored profile, where there is one for these threads, else the probe; a disk that was not
    profiled is probed with each of `depths` reads in flight. Raises ReadError.
    """
    matrices = model.weights.matrices
    path: Path = max((m.tensor for m in matrices), key=lambda t: t.size_bytes).path
    size = request_bytes(matrices)
    if profile := load_profile(profile_key(context)):
        stored = profile.disks.get(disk_place(path))
        return profile.hardware(stored or probe_disk(path, size, depths))
    types = dict.fromkeys(m.tensor.block_type for m in matrices)
    return probe(path, types, model.spec, kv_type, context, spare_bytes, size, depths)


def _workload(
    sizes: Sizes,
    ctx: int | None,
    budget_bytes: int,
    prompt_tokens: int | None,
    new_tokens: int | None,
) -> Workload:
    """The context asked for, else what the work needs, at most what the model was trained for; new
    tokens as far as it has room for them.
    """
    trained = sizes.spec.context_tokens
    if ctx is not None and not 1 <= ctx <= trained:
        raise OptionError(
            f"--ctx is {ctx}, the model was trained for {trained} tokens",
            f"give 1 to {trained}",
        )
    if prompt_tokens is None or new_tokens is None:
        context = ctx or _chat_context_tokens(sizes, budget_bytes)
        return Workload(context // 2, context - context // 2, context)
    context = ctx or max(1, min(prompt_tokens + new_tokens, trained))
    if prompt_tokens > context:
        raise PromptError(
            f"the prompt has {prompt_tokens} tokens, the context {context}",
            f"give a larger --ctx, up to {trained}" if context < trained else "shorten it",
        )
    room = context - prompt_tokens + 1  # the last token needs none: it is not read again
    return Workload(prompt_tokens, min(new_tokens, room), context)


def _chat_context_tokens(sizes: Sizes, budget_bytes: int) -> int:
    per_token = sizes.spec.kv_bytes_per_token(sizes.kv_block_type)
    fits = budget_bytes // CONTEXT_SHARE // per_token // PAGE_TOKENS * PAGE_TOKENS
    return max(PAGE_TOKENS, min(CHAT_CONTEXT_TOKENS, sizes.spec.context_tokens, fits))
