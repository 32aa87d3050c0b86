"""FlexInfer: models that do not fit in memory, under a budget, at a speed told beforehand."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flexinfer.errors import (
    BudgetError,
    FlexInferError,
    FormatError,
    OptionError,
    PromptError,
    ReadError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from flexinfer.executor.sampler import SamplingParams
    from flexinfer.llm import LLM, Completion
    from flexinfer.planner.planner import Plan

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "BudgetError",
    "Completion",
    "FlexInferError",
    "FormatError",
    "OptionError",
    "Plan",
    "PromptError",
    "ReadError",
    "SamplingParams",
    "UnsupportedError",
]

# Imported when first asked for: numpy and the kernels come with them, and `info` needs neither.
_LATER = {
    "LLM": "flexinfer.llm",
    "Completion": "flexinfer.llm",
    "Plan": "flexinfer.planner.planner",
    "SamplingParams": "flexinfer.executor.sampler",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
