"""How far a long step is and how long it will yet take, from the first second on."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flexinfer.commands.console import Console
from flexinfer.commands.figures import duration

QUIET_S = 1.0  # a step that is over by then is not spoken of in a log
LOG_EVERY_S = 10.0
MEASURED_S = 0.5  # from then on the rate so far tells the rest better than the prediction


@dataclass(frozen=True, slots=True)
class Phase:
    """A long step: `amount(done, total)` and `rate(done per second)` put it into words."""

    label: str
    amount: Callable[[int, int], str]
    rate: Callable[[float], str]
    expected_s: float | None = None


class Progress:
    """Call it with (phase, done, total), beginning with done = 0 or nearly so.

    On a terminal a status line; else a line at once where the step is expected to last, and one
    every ten seconds.
    """

    def __init__(self, console: Console, phases: Mapping[str, Phase]) -> None:
        self._console = console
        self._phases = phases
        self._current: str | None = None
        self._first_done = self._last_done = 0
        self._started = self._logged = 0.0

    def __call__(self, name: str, done: int, total: int) -> None:
        now = time.perf_counter()
        phase = self._phases[name]
        if name != self._current or done < self._last_done:
            self._current, self._started, self._first_done = name, now, done
            lasting = phase.expected_s is not None and phase.expected_s >= QUIET_S
            self._logged = now - LOG_EVERY_S + (0 if lasting else QUIET_S)
        self._last_done = done
        if self._console.live:
            self._console.status(self._line(phase, done, total, now))
        elif now - self._logged >= LOG_EVERY_S and done < total:
            self._logged = now
            self._console.say(self._line(phase, done, total, now))

    def _line(self, phase: Phase, done: int, total: int, now: float) -> str:
        elapsed, advanced = now - self._started, done - self._first_done
        words = [f"{phase.label} {100 * done // max(total, 1)} %", phase.amount(done, total)]
        if advanced and elapsed >= MEASURED_S:
            words += [
                phase.rate(advanced / elapsed),
                f"{duration(elapsed * (total - done) / advanced)} left",
            ]
        elif phase.expected_s is not None:
            words.append(f"about {duration(max(0.0, phase.expected_s - elapsed))} expected")
        return " · ".join(words)
