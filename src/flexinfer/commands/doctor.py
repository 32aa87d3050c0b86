"""`flexinfer doctor`: what this machine gives and what stands in the way."""

import argparse
import json
import os
import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flexinfer import _kernels
from flexinfer.commands import findings
from flexinfer.commands.console import DIM, GREEN, RED, YELLOW, Console, printable
from flexinfer.commands.figures import count
from flexinfer.commands.findings import Finding, Mark
from flexinfer.commands.models import model_path
from flexinfer.errors import FlexInferError, OptionError
from flexinfer.executor.session import kernel_context
from flexinfer.formats.checkpoint import Checkpoint
from flexinfer.formats.open import open_checkpoint
from flexinfer.memory import machine
from flexinfer.memory.budget import resident_bytes, usable_bytes
from flexinfer.memory.machine import Processor, Roots
from flexinfer.memory.trial import try_memory
from flexinfer.streaming.place import place_of_file, place_of_folder

DISK_S = 0.5  # how long the model's disk is measured
COLUMNS = 80
NO_BREAK = "\N{NO-BREAK SPACE}"
COLOURS = {Mark.OK: GREEN, Mark.NOTE: YELLOW, Mark.PROBLEM: RED}


def doctor(args: argparse.Namespace, console: Console) -> int:
    """Print all findings; then the first that makes running impossible is raised as an error."""
    checkpoint = open_checkpoint(model_path(args.model)) if args.model is not None else None
    processor = machine.processor(Roots())
    found = examine(Roots(), processor, checkpoint)
    if args.json:
        print(json.dumps(report(processor, found)))
    else:
        print("\n".join(show(processor, found, Console(sys.stdout))))
    for finding in found:
        if finding.fatal:
            raise FlexInferError(f"nothing can run here: {finding.text}", finding.advice)
    return 0


def examine(roots: Roots, processor: Processor, checkpoint: Checkpoint | None) -> list[Finding]:
    """Look at everything, in the order of the report. Raises ReadError."""
    threads, memory = machine.threads(roots), machine.memory(roots)
    own_bytes = resident_bytes()
    try:
        context, isa = kernel_context(threads.threads), None
        isa = context.isa
    except OptionError:
        context, isa = _kernels.Context(threads.threads), None
    cap = os.environ.get("FLEXINFER_ISA") or None
    spare = usable_bytes(memory.available_bytes) - own_bytes
    trial = try_memory(context, spare, memory.default_budget_bytes)
    swap = machine.swap_devices(roots)
    found = [
        findings.judge_instructions(isa, _kernels.available_isas(), cap, processor),
        findings.judge_threads(threads),
        findings.judge_load(threads),
        findings.judge_clock(machine.clock(roots)),
        findings.judge_memory(memory, own_bytes),
        findings.judge_groups(machine.groups(roots)),
        findings.judge_swap(swap),
        findings.judge_address_space(trial),
        findings.judge_memory_speed(trial, threads.threads),
        findings.judge_huge_pages(machine.huge_pages(roots), trial),
        findings.judge_pinning(machine.lock_limit(roots), trial, bool(swap)),
    ]
    if checkpoint is None:
        found.append(findings.judge_disk(place_of_folder(Path.cwd(), roots.proc)))
    else:
        tensors = checkpoint.tensors.values()
        largest = max(tensors, key=lambda tensor: tensor.size_bytes)
        weights_bytes = sum(tensor.size_bytes for tensor in tensors)
        found += [
            findings.judge_disk(place_of_file(largest.path, DISK_S, roots.proc)),
            findings.judge_model(checkpoint.path, weights_bytes, memory, own_bytes),
        ]
    return [finding for finding in found if finding is not None]


def report(processor: Processor, found: Sequence[Finding]) -> dict[str, Any]:
    """For programs: findings by name; a machine that tells nothing of one lacks it."""
    kernel = os.uname()
    return {
        "processor": processor.name,
        "virtual": processor.virtual,
        "architecture": kernel.machine,
        "kernel": kernel.release,
        "runs": not any(finding.fatal for finding in found),
        "notes": _total(found, Mark.NOTE),
        "problems": _total(found, Mark.PROBLEM),
        "findings": {
            f.name: {"mark": f.mark, "text": f.text, "advice": f.advice} | f.facts for f in found
        },
    }


def show(processor: Processor, found: Sequence[Finding], out: Console) -> list[str]:
    """The lines of the report, at most 80 columns wide unless a command or path is longer."""
    kernel = os.uname()
    guest = ", a virtual machine" if processor.virtual else ""
    name = f"{processor.name}, " if processor.name else ""
    lines = [f"{name}{kernel.machine}, Linux {kernel.release}{guest}", ""]
    mark_width = max(map(len, Mark))
    name_width = max(len(finding.name) for finding in found)
    for finding in found:
        mark = out.painted(COLOURS[finding.mark], finding.mark.ljust(mark_width))
        name = finding.name.replace("_", " ").ljust(name_width)
        indent = mark_width + name_width + 4
        first, *more = _wrapped(finding.text, COLUMNS - indent)
        lines += [f"{mark}  {name}  {first}", *(" " * indent + line for line in more)]
        if finding.advice:
            first, *more = _wrapped(finding.advice, COLUMNS - mark_width - 4)
            advice = [f"→ {first}", *(f"  {line}" for line in more)]
            lines += [" " * (mark_width + 2) + out.painted(DIM, line) for line in advice]
    return [*lines, "", _verdict(found)]


def _verdict(found: Sequence[Finding]) -> str:
    problems, notes = _total(found, Mark.PROBLEM), _total(found, Mark.NOTE)
    if not problems and not notes:
        return "Nothing stands in the way."
    told = [count(n, noun) for n, noun in ((problems, "problem"), (notes, "note")) if n]
    return f"{' and '.join(told)}: the arrows say what to do."


def _total(found: Sequence[Finding], mark: Mark) -> int:
    return sum(finding.mark == mark for finding in found)


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of at most `width`; figures keep their units, commands in backticks stay whole."""
    whole = re.sub(
        r"`[^`]+`|\d [KMGT]?i?B", lambda match: match[0].replace(" ", NO_BREAK), printable(text)
    )
    lines = textwrap.wrap(whole, width, break_long_words=False, break_on_hyphens=False)
    return [line.replace(NO_BREAK, " ") for line in lines]
