"""What is said of long steps, by a clock that the test moves."""

import io

import pytest

from flexinfer.commands import console as console_module
from flexinfer.commands import progress as progress_module
from flexinfer.commands.console import Console
from flexinfer.commands.progress import Phase, Progress


class Clock:
    now_s = 1000.0

    def perf_counter(self) -> float:
        return self.now_s


class Live(io.StringIO):
    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        raise OSError("no descriptor")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress_module, "time", clock)
    monkeypatch.setattr(console_module, "time", clock)
    return clock


def reading(expected_s: float | None) -> dict[str, Phase]:
    """One unit of 100 a second."""
    amount = "{} of {}".format
    return {"prefill": Phase("reading", amount, lambda per_s: f"{per_s:.2f}/s", expected_s)}


def test_a_long_step_is_spoken_of_at_once_and_every_ten_seconds(clock: Clock) -> None:
    log = io.StringIO()
    progress = Progress(Console(log), reading(expected_s=80))
    for done in range(101):
        progress("prefill", done, 100)
        clock.now_s += 1
    lines = log.getvalue().splitlines()
    assert lines[0] == "reading 0 % · 0 of 100 · about 80 s expected"
    assert lines[1] == "reading 10 % · 10 of 100 · 1.00/s · 90 s left"
    assert lines[-1] == "reading 90 % · 90 of 100 · 1.00/s · 10 s left"
    assert len(lines) == 10


def test_a_short_step_is_not_spoken_of_in_a_log(clock: Clock) -> None:
    log = io.StringIO()
    progress = Progress(Console(log), reading(expected_s=0.5))
    for done in range(8):
        progress("prefill", done, 8)
        clock.now_s += 0.1
    assert log.getvalue() == ""


def test_a_step_that_was_thought_short_is_spoken_of_when_it_lasts(clock: Clock) -> None:
    log = io.StringIO()
    progress = Progress(Console(log), reading(expected_s=None))
    for done in range(20):
        progress("prefill", done, 40)
        clock.now_s += 1
    assert log.getvalue().splitlines()[0] == "reading 2 % · 1 of 40 · 1.00/s · 39 s left"


def test_a_second_step_of_the_kind_begins_anew(clock: Clock) -> None:
    log = io.StringIO()
    progress = Progress(Console(log), reading(expected_s=30))
    for start in (0, 10):
        for done in range(start, 20):
            progress("prefill", done, 20)
            clock.now_s += 2
    lines = log.getvalue().splitlines()
    assert lines[0].endswith("about 30 s expected")
    assert "reading 50 % · 10 of 20 · about 30 s expected" in lines[1:]
    assert lines[-1].startswith("reading 75 % · 15 of 20 · 0.50/s · 10 s left")
