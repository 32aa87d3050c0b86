"""`flexinfer plan`: nothing is loaded, and nothing imported that the plan does not need."""

import argparse

from flexinfer.commands import plots
from flexinfer.commands.console import Console
from flexinfer.errors import OptionError
from flexinfer.models.shapes import NAMED
from flexinfer.planner.presets import PRESETS


def plan(args: argparse.Namespace, console: Console) -> int:
    """For this machine, or for another."""
    shape = args.model in NAMED or args.model.endswith(".json")
    if args.plot is not None:
        plots.check_target(args.plot)
    if args.type is not None and not shape:
        raise OptionError("--type cannot take effect on a model with weights", "leave it out")
    if args.hardware is not None:
        from flexinfer.commands.plan_tiers import plan_tiers

        return plan_tiers(args)
    if shape:
        raise OptionError(
            f"{args.model} has no weights that could be run here",
            f"give --hardware: {', '.join(PRESETS)}, or a file",
        )
    from flexinfer.commands.plan_here import plan_here

    return plan_here(args)
