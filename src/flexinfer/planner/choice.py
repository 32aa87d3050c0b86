"""The choice of a strategy for each phase under the budgets of host and device memory."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

from flexinfer.errors import BudgetError, OptionError
from flexinfer.formats.quants import BlockType
from flexinfer.models.spec import ModelSpec
from flexinfer.models.weights import ModelWeights
from flexinfer.planner.estimator import Work, by_layer
from flexinfer.planner.hardware import Hardware
from flexinfer.planner.phases import PhaseEstimate, PhaseSums, estimate_phase, phase
from flexinfer.planner.sizes import Sizes
from flexinfer.planner.strategies import Objective, Placing, Tiers
from flexinfer.planner.tiers import Load, TierMemory
from flexinfer.units import format_bytes

BASELINES = ("flexgen", "flexgen-opt", "splitgen", "cpu-only")  # paper A's, fixed
CHOSEN = "flexinfer"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A placing and what it promises. Bytes are of the host's and the device's memory."""

    name: str
    placing: Placing
    load: Load
    prefill: PhaseEstimate
    decode: PhaseEstimate  # of one token
    hand_over_s: float  # moving the cache, where its layers change processors
    streamed_share: float  # of the host's weights, from disk
    host_parts: Mapping[str, int]
    device_parts: Mapping[str, int]

    @property
    def ttft_s(self) -> float:
        return self.prefill.seconds

    @property
    def tpot_s(self) -> float:
        return self.decode.seconds

    @property
    def latency_s(self) -> float:
        return self.ttft_s + self.hand_over_s + (self.load.new_tokens - 1) * self.tpot_s

    @property
    def tokens_per_s(self) -> float:
        """New tokens of all sequences over the whole time."""
        return self.load.sequences * self.load.new_tokens / self.latency_s


class Chooser:
    """Estimates and chooses for one model, machine and load; budgets are in bytes.

    `base_bytes` is what the process holds besides (interpreter, tokenizer). Without a device only
    the host computes.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: ModelWeights,
        hardware: Hardware,
        load: Load,
        *,
        ram_bytes: int,
        vram_bytes: int = 0,
        base_bytes: int = 0,
        kv_type: str = "f16",
    ) -> None:
        sizes = Sizes(spec, weights, kv_type)
        self._hardware = hardware
        self._load = load
        self._budgets = (ram_bytes, vram_bytes)
        self._n = len(spec.layers)
        layers = by_layer(weights.matrices)
        kind = sizes.kv_block_type
        self._prefill = phase(spec, layers, hardware, list(_prompt(load, kind)))
        self._new_cache = [0.0, *accumulate(self._prefill.new_cache_bytes)]
        context = load.prompt_tokens + load.new_tokens // 2
        work = Work(1, context, kind, load.sequences)
        self._decode = phase(spec, layers, hardware, [work])
        self._memory = TierMemory(
            sizes,
            [times.weight_bytes for times in self._decode.sweeps[0]],
            load,
            ram_bytes=ram_bytes,
            vram_bytes=vram_bytes if hardware.device else 0,
            base_bytes=base_bytes,
        )

    def baseline(self, name: str) -> Candidate:
        """One of BASELINES. Raises OptionError for another or without a device, BudgetError where
        it does not fit.

        FlexGen streams all weights to the device, FlexGen_Opt locks there what fits, SplitGen
        gives the device as many layers as fit with their cache, in both phases.
        """
        if name not in BASELINES:
            raise OptionError(f"unknown strategy {name!r}", f"known: {', '.join(BASELINES)}")
        if name != "cpu-only" and self._hardware.device is None:
            raise OptionError(
                f"{name} needs an accelerator, and {self._hardware.name} has none",
                "name a machine that has one, for example --hardware desktop",
            )
        layers, tiers = 0, Tiers()
        if name == "splitgen":
            layers = self._memory.most_static()
            tiers = Tiers(layers, layers)
        elif name != "cpu-only":
            layers = self._n
            filled = list(self._memory.device_options(layers))
            if not filled:
                raise self._refusal()
            cached = max(option.device_cache for option in filled)
            tiers = Tiers(0, cached)
            if name == "flexgen-opt":
                tiers = max(filled, key=lambda option: option.device_locked)
        return self._evaluate(name, Placing(self._n, layers, layers, tiers))

    def choose(self, objective: Objective = "latency") -> Candidate:
        """The best split for each phase and what the device holds for it. Ties go by latency.

        `throughput` is that of all sequences, which for a given load goes by latency, too. Raises
        BudgetError where nothing fits.
        """
        prefill = PhaseSums(self._prefill, self._hardware)
        decode = PhaseSums(self._decode, self._hardware)
        more = max(0, self._load.new_tokens - 1)

        def score(ttft: float, tpot: float, hand_over_s: float) -> tuple[float, float]:
            latency = ttft + hand_over_s + more * tpot
            return {"ttft": ttft, "tpot": tpot}.get(objective, latency), latency

        options = []
        for placing in self._decode_options():
            if (share := self._share(placing)) is not None:
                tpot = decode.seconds(placing.decode_layers, placing.tiers, share)
                options.append((score(prefill.least(placing.tiers), tpot, 0.0), placing))
        best, found = (float("inf"), float("inf")), None
        for floor, option in sorted(options, key=lambda entry: entry[0]):
            if floor >= best:
                break  # whatever the prompt does, it is no better
            for layers in range(self._n + 1 if self._hardware.device else 1):
                placing = replace(option, prefill_layers=layers)
                share = self._share(placing)
                if share is None or not self._memory.device_fits(placing):
                    continue
                ttft = prefill.seconds(layers, placing.tiers, share)
                tpot = decode.seconds(placing.decode_layers, placing.tiers, share)
                reached = score(ttft, tpot, self._hand_over_s(placing))
                if reached < best:
                    best, found = reached, placing
        if found is None:
            raise self._refusal()
        return self._evaluate(CHOSEN, found)

    def _decode_options(self) -> Iterator[Placing]:
        """Every split of decoding with what the device may hold for it, the prompt all there."""
        for layers in range(self._n + 1 if self._hardware.device else 1):
            for tiers in dict.fromkeys(self._memory.device_options(layers)):
                yield Placing(self._n, self._n, layers, tiers)

    def _share(self, placing: Placing) -> float | None:
        return self._memory.streamed_share(placing.host_layers, placing.tiers.device_cache)

    def _hand_over_s(self, placing: Placing) -> float:
        """The prompt's cache of layers that the host computed and that lie on the device then.

        What the device computed for the host was written back meanwhile.
        """
        device, n, cached = self._hardware.device, self._n, placing.tiers.device_cache
        if device is None or placing.prefill_layers >= cached:
            return 0.0
        moved = self._new_cache[n - placing.prefill_layers] - self._new_cache[n - cached]
        return device.to_device.seconds(moved)

    def _evaluate(self, name: str, placing: Placing) -> Candidate:
        """Raises BudgetError where it does not fit."""
        share = self._share(placing)
        if share is None or not self._memory.device_fits(placing):
            raise self._refusal()
        prefill, decode = (
            estimate_phase(table, strategy, placing.tiers, share, self._hardware)
            for table, strategy in (
                (self._prefill, placing.prefill),
                (self._decode, placing.decode),
            )
        )
        return Candidate(
            name,
            placing,
            self._load,
            prefill,
            decode,
            self._hand_over_s(placing),
            share,
            self._memory.host_parts(placing, share),
            self._memory.device_parts(placing),
        )

    def _refusal(self) -> BudgetError:
        ram, vram = self._budgets
        return BudgetError(
            f"{format_bytes(ram)} of host and {format_bytes(vram)} of device memory do not hold "
            f"what must stay (on the host alone {format_bytes(self._memory.least_host_bytes())})",
            "give more --ram or --vram, or fewer --prompt-tokens, --new-tokens or --batch",
        )


def _prompt(load: Load, kv_type: BlockType) -> Iterator[Work]:
    """The sweeps of the prompts, all sequences side by side."""
    step = load.sweep_rows // load.sequences
    for start in range(0, load.prompt_tokens, step):
        tokens = min(step, load.prompt_tokens - start)
        yield Work(tokens, start + tokens, kv_type, load.sequences)
