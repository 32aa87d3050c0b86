"""Strategies by the names that users give: cpu, gpu-offload, split:M, the papers', or auto."""

from dataclasses import dataclass

from flexinfer.errors import OptionError
from flexinfer.planner.strategies import Strategy, split
from flexinfer.units import parse_whole

AUTO = "auto"
WHOLE_RUN = ("flexgen", "flexgen-opt", "splitgen")  # for both phases at once
_KNOWN = "auto, cpu, gpu-offload, split:M, flexgen, flexgen-opt, splitgen"


@dataclass(frozen=True, slots=True)
class Requested:
    """A strategy for each phase; `lock`: layers stay on the device as far as they fit; `static`: as
    many of the last layers as fit there with their cache, and nothing else.
    """

    prefill: Strategy
    decode: Strategy
    lock: bool = True
    static: bool = False

    @property
    def needs_device(self) -> bool:
        return self.static or bool(self.prefill.device_layers or self.decode.device_layers)


def requested(name: str, prefill: str | None, decode: str | None, layers: int) -> Requested | None:
    """What --strategy and those of the phases ask for; None leaves the choice to the planner.

    Raises OptionError for a name that is unknown, or that cannot take effect.
    """
    if name in WHOLE_RUN:
        for option, given in (("--prefill-strategy", prefill), ("--decode-strategy", decode)):
            if given is not None:
                raise OptionError(
                    f"{option} cannot take effect: {name} is a strategy of both phases",
                    "leave one of them out",
                )
        whole = split(layers, layers)
        return Requested(whole, whole, lock=name != "flexgen", static=name == "splitgen")
    names = {
        "--prefill-strategy": name if prefill is None else prefill,
        "--decode-strategy": name if decode is None else decode,
    }
    if all(given == AUTO for given in names.values()):
        return None
    both = []
    for option, given in names.items():
        if given == AUTO:
            raise OptionError(
                f"{option} is left to auto, which chooses both phases together",
                "name a strategy for both phases, or for neither",
            )
        both.append(_strategy(given, layers))
    return Requested(both[0], both[1])


def _strategy(name: str, layers: int) -> Strategy:
    if name == "cpu":
        return split(layers, 0)
    if name == "gpu-offload":
        return split(layers, layers)
    if name in WHOLE_RUN:
        raise OptionError(f"{name} is a strategy of both phases", f"give it as --strategy {name}")
    kind, _, number = name.partition(":")
    try:
        count = parse_whole(number) if kind == "split" else None
    except OptionError:
        count = None
    if count is None:
        raise OptionError(f"unknown strategy {name!r:.80}", f"known: {_KNOWN}")
    if not 0 <= count <= layers:
        raise OptionError(
            f"{name}: the model has {layers} layers", f"give split:0 to split:{layers}"
        )
    return split(layers, count)
