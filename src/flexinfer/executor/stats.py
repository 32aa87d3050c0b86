"""What a request measured, beside what was predicted: the names are those of `run --json`."""

from dataclasses import dataclass

from flexinfer.executor.session import Session
from flexinfer.executor.setup import Planned
from flexinfer.memory.budget import peak_resident_bytes


@dataclass(frozen=True, slots=True)
class Stats:
    """Of one request, but for `load_s` and `peak_rss_bytes` (the kernel's VmHWM), which are the
    process's.
    """

    prompt_tokens: int
    new_tokens: int
    ttft_s: float
    tpot_s: float | None  # None below two tokens
    load_s: float
    stall_s: float
    disk_read_bytes: int
    locked_bytes: int
    streamed_bytes_per_sweep: int
    sweeps: int
    peak_rss_bytes: int
    budget_bytes: int
    predicted_ttft_s: float
    predicted_tpot_s: float
    bound_tpot_s: float
    link_bytes: int  # to the device, since it was opened
    device_bytes: int  # planned there, and never exceeded
    vram_bytes: int
    device: str | None  # an emulated one's name begins with "emulated:"
    emulated: bool


def measure(planned: Planned, session: Session, stall_before_s: float, read_before: int) -> Stats:
    """The latest request's figures; the `before` values are the session's at its start."""
    timing, plan = session.engine.timing, planned.plan
    return Stats(
        prompt_tokens=timing.prompt_tokens,
        new_tokens=timing.new_tokens,
        ttft_s=timing.ttft_s,
        tpot_s=timing.tpot_s,
        load_s=session.load_s,
        stall_s=session.stall_s - stall_before_s,
        disk_read_bytes=session.disk_read_bytes - read_before,
        locked_bytes=plan.placement.locked_bytes,
        streamed_bytes_per_sweep=plan.placement.streamed_bytes,
        sweeps=timing.sweeps,
        peak_rss_bytes=peak_resident_bytes(),
        budget_bytes=plan.budget_bytes,
        predicted_ttft_s=planned.prediction.ttft_s,
        predicted_tpot_s=planned.prediction.tpot_s,
        bound_tpot_s=planned.prediction.bound_tpot_s,
        link_bytes=session.link_bytes,
        device_bytes=plan.device.total_bytes if plan.device else 0,
        vram_bytes=plan.device.vram_bytes if plan.device else 0,
        device=planned.device.name if planned.device else None,
        emulated=planned.emulated,
    )
