"""What a user may ask of a run."""

from dataclasses import dataclass, fields
from typing import cast

from flexinfer.errors import OptionError, check_type


@dataclass(frozen=True, slots=True)
class Options:
    """How to run. What is None is decided from the machine and the model."""

    ram: str | int | None = None
    ctx: int | None = None
    threads: int | None = None
    kv_type: str = "f16"
    policy: str = "rows"
    prefetch: bool = True
    prefetch_window: int | None = None
    io_threads: int | None = None
    force: bool = False  # a leave: without effect where the budget is there
    device: str | None = None
    vram: str | int | None = None
    strategy: str | None = None
    prefill_strategy: str | None = None
    decode_strategy: str | None = None

    def __post_init__(self) -> None:
        """Raises OptionError for a value of another type, and for `force` without `ram`."""
        for field in fields(self):
            check_type(field.name, getattr(self, field.name), cast(type, field.type))
        if self.force and self.ram is None:
            raise OptionError(
                "--force takes effect only on a --ram", "give --ram, or leave --force out"
            )
