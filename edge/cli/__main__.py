"""`python -m edge.cli` is `edge-agent`."""

import sys

from edge.cli import main

sys.exit(main())
