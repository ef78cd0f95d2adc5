"""Commands for development: `python -m tools.NAME`."""

import sys

if sys.argv[0] == "-m":  # one of them is being started: its modules are imported after this one
    from edge.core.interrupts import end_quietly

    end_quietly()
