"""The command line: dispatch, exit codes, and what errors become. No logic."""

import argparse
import errno
import io
import logging
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from flexinfer.arguments import parse, parser
from flexinfer.commands.console import Console
from flexinfer.errors import FlexInferError, OptionError

EXIT_OURS, EXIT_USERS, EXIT_INTERRUPTED = 1, 2, 130
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

# The commands say on the console what the library says to those who use it.
logging.getLogger("flexinfer").addHandler(logging.NullHandler())


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0, 2 the user's to mend, 130 interrupted, 1 ours."""
    _open_closed_streams()
    console = Console(sys.stderr)
    command = "flexinfer"
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal that lacks a character shows "?"
        sys.stdout.reconfigure(errors="replace")
    try:
        args = parse(argv)
        if args.command is None:
            parser().print_help()
            return 0
        if args.quiet and args.verbose:
            raise OptionError("--quiet and --verbose contradict each other", "give one of them")
        command = f"flexinfer {args.command}"
        console = Console(sys.stderr, quiet=args.quiet, verbose=args.verbose)
        with _endings():
            code = _dispatch(args, console)
            sys.stdout.flush()
        return code
    except FlexInferError as error:
        see = f"see `{command} --help`" if isinstance(error, OptionError) else None
        console.error(str(error), error.hint or see)
        return EXIT_USERS
    except KeyboardInterrupt:
        console.clear()
        return EXIT_INTERRUPTED
    except _Ended as ended:
        console.clear()
        return 128 + ended.signum
    except BrokenPipeError:
        _drop_output()  # the reader has seen enough
        return 0
    except Exception as error:
        console.clear()
        if isinstance(error, OSError) and error.errno in _FULL:
            _drop_output()
            console.error(f"the output cannot be written: {error.strerror}", "make room for it")
            return EXIT_USERS
        if console.verbose:
            traceback.print_exc()
        console.error(
            f"internal: {type(error).__name__}: {error}",
            "this is a fault of FlexInfer; run it again with -v for the details to report",
        )
        return EXIT_OURS


def _open_closed_streams() -> None:
    """A standard stream that we were started without is empty, and drops what is written.

    Without this the next file that is opened, the model, would take its number.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115


def _drop_output() -> None:
    """Nothing more can be written to standard output, at exit either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Ended(BaseException):
    """Asked by a signal to end."""

    def __init__(self, signum: int) -> None:
        self.signum = signum


@contextmanager
def _endings() -> Iterator[None]:
    """Make SIGTERM and SIGHUP exceptions, so that the terminal and child processes are seen to."""

    def end(signum: int, frame: FrameType | None) -> None:
        raise _Ended(signum)

    ours = [s for s in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) == signal.SIG_DFL]
    for signum in ours:  # not those that are ignored, as under nohup
        signal.signal(signum, end)
    try:
        yield
    finally:
        for signum in ours:
            signal.signal(signum, signal.SIG_DFL)


def _dispatch(args: argparse.Namespace, console: Console) -> int:
    """Each command imports what it needs: `info` needs no numpy."""
    match args.command:
        case "run":
            from flexinfer.commands.run import run as command
        case "plan":
            from flexinfer.commands.plan import plan as command
        case "bench" if args.kernels:
            from flexinfer.commands.bench_kernels import bench_kernels as command
        case "bench":
            from flexinfer.commands.bench import bench as command
        case "perplexity":
            from flexinfer.commands.perplexity import perplexity as command
        case "profile":
            from flexinfer.commands.profile import profile as command
        case "doctor":
            from flexinfer.commands.doctor import doctor as command
        case _:
            from flexinfer.commands.info import info as command
    return command(args, console)
