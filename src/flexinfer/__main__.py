"""`python -m flexinfer` is the command line."""

import sys

from flexinfer.cli import main

sys.exit(main())
