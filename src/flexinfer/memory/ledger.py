"""What the budget is spent on, by category, to the byte."""

from enum import StrEnum

from flexinfer.errors import BudgetError
from flexinfer.units import format_bytes


class Category(StrEnum):
    """What memory is for. The order is that of the printed plan."""

    INTERPRETER = "interpreter"
    TOKENIZER = "tokenizer"
    LOCKED = "locked"
    VECTORS = "vectors"
    RING = "ring"
    KV_CACHE = "kv_cache"
    ACTIVATIONS = "activations"
    LOGITS = "logits"
    SCRATCH = "scratch"  # of a device, while it computes
    RUNTIME = "runtime"  # what a device's libraries take
    STAND_IN = "stand_in"  # a device that is host memory in truth


class Ledger:
    """Charges against one budget. Every large allocation is charged before it is made."""

    def __init__(self, budget_bytes: int, option: str = "--ram") -> None:
        self._option = option
        self.budget_bytes = budget_bytes
        self._charged: dict[Category, int] = {}

    def charge(self, category: Category, size_bytes: int) -> None:
        """Add to a category. Raises BudgetError, with all parts, where too little is left."""
        assert size_bytes >= 0
        if size_bytes > self.remaining_bytes:
            parts = ", ".join(f"{c} {format_bytes(n)}" for c, n in self.totals.items()) or "nothing"
            raise BudgetError(
                f"{category} needs {size_bytes} bytes, {self.remaining_bytes} of "
                f"{self.budget_bytes} are left; charged so far: {parts}",
                f"use a larger {self._option}, or a smaller --ctx",
            )
        self._charged[category] = self._charged.get(category, 0) + size_bytes

    @property
    def totals(self) -> dict[Category, int]:
        """Bytes by category, in the order of Category; those never charged are left out."""
        return {c: self._charged[c] for c in Category if c in self._charged}

    @property
    def charged_bytes(self) -> int:
        return sum(self._charged.values())

    @property
    def remaining_bytes(self) -> int:
        return self.budget_bytes - self.charged_bytes
