"""`python -m coordinator` is `edge-coordinator`."""

import sys

from coordinator.cli import main

sys.exit(main())
