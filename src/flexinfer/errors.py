"""Errors that are the user's to mend. Each says what, where, both numbers, and what to do."""

from types import UnionType


class FlexInferError(Exception):
    """Base of all errors that a user can mend; `hint` says how."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class FormatError(FlexInferError):
    """A model file that is damaged, incomplete, or not what its name says."""


class UnsupportedError(FlexInferError):
    """A sound file that needs something FlexInfer does not have: a block type, an architecture,
    a tokenizer.
    """


class BudgetError(FlexInferError):
    """A budget that the work cannot be done in, or that the machine does not have."""


class OptionError(FlexInferError):
    """An option that is unknown, contradictory, or that cannot take effect."""


class PromptError(FlexInferError):
    """A request that cannot be served: longer than the context, refused by the chat template,
    ...
    """


class ReadError(FlexInferError):
    """The model file could not be read while running (I/O error, file truncated or replaced)."""


def check_type(name: str, value: object, kind: type | UnionType) -> None:
    """Raises OptionError unless `value` is of that type; True and False are no integers here."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        words = kind if isinstance(kind, UnionType) else kind.__name__
        raise OptionError(
            f"{name} is {value!r:.80}, of type {type(value).__name__}",
            f"it must be of type {words}",
        )
