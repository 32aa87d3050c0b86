"""The program: the command line, and Ctrl-C while that is still being imported."""

import sys


def main() -> int:
    """Runs the command line; returns the exit code."""
    try:
        from flexinfer.cli import main as command_line

        return command_line()
    except KeyboardInterrupt:  # before it could see to it, or again while it did
        return 130


if __name__ == "__main__":
    sys.exit(main())
