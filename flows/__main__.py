"""``python -m flows``: the same as ``pate``."""

from flows.cli import main

main()
