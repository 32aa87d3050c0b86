"""What a plan with a device promises, by paper A's formulas (`planner.phases`)."""

from collections.abc import Iterator

from flexinfer.models.spec import ModelSpec
from flexinfer.models.weights import Matrix
from flexinfer.planner.estimator import Cost, SweepEstimate, Work, by_layer
from flexinfer.planner.hardware import Hardware
from flexinfer.planner.phases import PhaseEstimate, estimate_phase, phase
from flexinfer.planner.planner import Plan, Prediction
from flexinfer.planner.sizes import KV_TYPES
from flexinfer.planner.strategies import Strategy, Tiers


def predict_device(
    spec: ModelSpec, matrices: tuple[Matrix, ...], plan: Plan, hardware: Hardware
) -> Prediction:
    """TTFT and TPOT of the plan's workload; `hardware` has a device. With prefetch, also where the
    plan has none.
    """
    device = plan.device
    assert device is not None and hardware.device is not None
    layers, placement = by_layer(matrices), plan.placement
    tiers = Tiers(len(device.locked_layers), len(device.cached_layers))
    held = placement.locked_bytes + placement.streamed_bytes
    share = placement.streamed_bytes / held if held else 0.0

    def estimate(strategy: Strategy, works: list[Work]) -> PhaseEstimate:
        return estimate_phase(
            phase(spec, layers, hardware, works), strategy, tiers, share, hardware
        )

    load = plan.workload
    context = load.prompt_tokens + load.new_tokens // 2
    prefill = estimate(device.prefill, list(_prompt(plan)))
    decode = estimate(device.decode, [Work(1, context, KV_TYPES[plan.kv_type])])
    locking_s = placement.locked_bytes / hardware.disk_bytes_per_s
    locked_bytes = sum(t.size_bytes for i in device.locked_layers for t in layers[i])
    return Prediction(
        prefill.seconds,
        decode.seconds,
        decode.seconds,
        locking_s + locked_bytes / hardware.disk_bytes_per_s,
        SweepEstimate(Cost(decode.seconds, 0.0), decode.disk_s, decode.seconds),
    )


def _prompt(plan: Plan) -> Iterator[Work]:
    for start in range(0, plan.workload.prompt_tokens, plan.sweep_tokens):
        tokens = min(plan.sweep_tokens, plan.workload.prompt_tokens - start)
        yield Work(tokens, start + tokens, KV_TYPES[plan.kv_type])
