"""The processors of a run: each with its operations, its view of the weights and its memory."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from flexinfer.executor.cache_moves import CacheMoves
from flexinfer.executor.workspace import Workspace
from flexinfer.models.decoder import Decoder
from flexinfer.ops.base import DeviceOps, Ops
from flexinfer.planner.device import PhaseName
from flexinfer.planner.strategies import Processor
from flexinfer.streaming.link import Pipeline


class TwoWayOps(Ops, DeviceOps, Protocol):
    """Those of a processor with memory of its own."""


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One processor in one phase."""

    ops: Ops
    decoder: Decoder
    workspace: Workspace


@dataclass(frozen=True, slots=True)
class Device:
    """The accelerator's side of a run; its weights are bound anew for each phase."""

    ops: TwoWayOps
    sides: Mapping[PhaseName, Side]
    processors: Mapping[PhaseName, tuple[Processor, ...]]  # of each layer
    cache: CacheMoves
    pipeline: Pipeline
