"""How missing parts are installed.

The project is on no package index, and its name there belongs to another one: every hint names the folder, never the project's name.
"""

from __future__ import annotations

import shlex
import sys


def pip_install(arguments: str) -> str:
    """The command with which the running interpreter installs something."""
    return f"{shlex.quote(sys.executable or 'python3')} -m pip install {arguments}"


def install_extra(extra: str) -> str:
    """The command that installs a part (an extra of pyproject.toml), and where to run it."""
    return pip_install(f"-c constraints.txt -e '.[{extra}]'") + " in the project's folder"
