"""Time of an emulated accelerator: work and transfers that finish no earlier than they are due.

Waiting is sleeping, so whatever else there is to do meanwhile has the processor.
"""

import threading
import time


class Pace:
    """One thread's operations, each of which takes the longer of its own time and of what it is
    charged.

    They are due one after the other; only `wait` waits, as a device's queue lets its host run
    ahead. Waking up too late is not charged to what follows.
    """

    def __init__(self) -> None:
        self.due_at = self._began = time.perf_counter()
        self._thread = threading.get_ident()

    def charge(self, seconds: float) -> None:
        """The operation under way, whose own work ends now, takes that long."""
        self.due_at = max(self.due_at, self._began) + seconds
        self._began = time.perf_counter()
        self._thread = threading.get_ident()

    def pass_over(self, seconds: float) -> None:
        """That long, up to now, it was not computing but waiting for something else."""
        self._began += seconds

    def begin(self) -> None:
        """Whatever was before, the next operation begins now; said by another thread than the one
        whose operations these are, it says nothing.
        """
        if threading.get_ident() == self._thread:
            self._began = time.perf_counter()

    def wait(self) -> None:
        """Until all that was charged is due; where it is already, what is under way goes on."""
        if self.due_at > time.perf_counter():
            self._began = sleep_until(self.due_at)


class Way:
    """One direction of a link: transfers follow each other, whichever threads ask for them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free_at = 0.0

    def pass_after(
        self, asked_at: float, seconds: float, given_up: threading.Event | None = None
    ) -> float:
        """Wait for the end of a transfer that was asked for at some time; returns when that was."""
        with self._lock:
            self._free_at = due_at = max(self._free_at, asked_at) + seconds
        ended_at = sleep_until(due_at, given_up)
        if ended_at < due_at:  # and so ends what else is on the way
            with self._lock:
                self._free_at = min(self._free_at, ended_at)
        return ended_at


def sleep_until(due_at: float, given_up: threading.Event | None = None) -> float:
    """Returns that time, or now where it is past already, or was given up."""
    now = time.perf_counter()
    if now >= due_at:
        return now
    while now < due_at:
        if given_up is None:
            time.sleep(due_at - now)
        elif given_up.wait(due_at - now):
            return min(due_at, time.perf_counter())
        now = time.perf_counter()
    return due_at
