"""How llama.cpp is built for this processor: arguments for CMake, and whether AMX works.

A virtual machine may announce AMX and fault at its first instruction, and some compilers' own header declares that the instruction that
loads the shape of tiles reads 8 of its 64 bytes: the rest is then optimised away, and llama.cpp faults there. So before the first build,
where AMX is announced, the header is checked, and a small program compiled and run; AMX is left out where either is bad. Where nothing
can be tried nothing is left out; the trial after the build (tools/setup.py) decides then. The engine that learns uses no tiles in any build
(edge/inference/gguf_model.py, `has_tiles`); a build that dies of them would still fail that trial.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal

from edge.core.machine import cpu_flags

Build = Literal["first", "without-amx", "for-any"]
WITHOUT_AMX = "-DCMAKE_C_FLAGS=-U__AMX_INT8__ -DCMAKE_CXX_FLAGS=-U__AMX_INT8__"
FOR_ANY = "-DGGML_NATIVE=OFF"
_LIBRARY_ONLY = Path(__file__).parents[2] / "tools" / "llama_library_only.cmake"
_AMX = {"amx_tile", "amx_int8"}
_LIMIT_S = 60.0
_TOO_LITTLE_READ = re.compile(rb"ldtilecfg[^;]*\(const void \*\*\)")
_REFUSED = 3
"""Exit code where Linux does not permit tiles; llama.cpp does not use them then."""
_PROGRAM = """
#include <immintrin.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct __attribute__((packed)) tiles { uint8_t palette, start_row, unused[14]; uint16_t bytes[16]; uint8_t rows[16]; };

int main(void) {
  static int8_t a[16][64], b[16][64];
  static int32_t c[16][16];
  struct tiles shape;
  if (syscall(SYS_arch_prctl, 0x1023, 18)) return 3; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
  memset(a, 1, sizeof a);
  memset(b, 2, sizeof b);
  memset(&shape, 0, sizeof shape);
  shape.palette = 1;
  for (int tile = 0; tile < 3; tile++) { shape.bytes[tile] = 64; shape.rows[tile] = 16; }
  _tile_loadconfig(&shape);
  _tile_zero(0);
  _tile_loadd(1, a, 64);
  _tile_loadd(2, b, 64);
  _tile_dpbssd(0, 1, 2);
  _tile_stored(0, c, 64);
  _tile_release();
  return c[0][0] == 128 && c[15][15] == 128 ? 0 : 1;
}
"""


def first_arguments(compiler: Sequence[str], flags: Collection[str]) -> str:
    """CMake arguments of the first build ("": none). `flags`: what the processor announces."""
    is_left_out = set(flags) >= _AMX and (header_is_bad(compiler) or amx_fails(compiler))
    return WITHOUT_AMX if is_left_out else ""


def header_is_bad(compiler: Sequence[str], header: str = "#include <immintrin.h>\n") -> bool:
    """Whether the compiler takes the shape of tiles for a pointer's 8 bytes, as GCC 12 does. False where it cannot be asked."""
    with tempfile.TemporaryDirectory(prefix="amx-") as folder:
        source, seen = Path(folder, "amx.c"), Path(folder, "amx.i")
        source.write_text(header, encoding="ascii")
        is_read = _ended([*compiler, "-E", "-mamx-tile", "-o", str(seen), str(source)]) == 0 and seen.is_file()
        return is_read and _TOO_LITTLE_READ.search(seen.read_bytes()) is not None


def amx_fails(compiler: Sequence[str], program: str = _PROGRAM) -> bool:
    """Whether a program that multiplies two tiles dies of it, or comes to a wrong product. False where it cannot be tried."""
    with tempfile.TemporaryDirectory(prefix="amx-") as folder:
        source, built = Path(folder, "amx.c"), Path(folder, "amx")
        source.write_text(program, encoding="ascii")
        if _ended([*compiler, "-O1", "-mamx-tile", "-mamx-int8", "-o", str(built), str(source)]) != 0:
            return False
        return _ended([str(built)]) not in (0, _REFUSED, None)


def _ended(command: Sequence[str]) -> int | None:
    """The exit code, negative for a signal; None where the command cannot be run or takes too long."""
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_S, check=False).returncode
    except (OSError, subprocess.TimeoutExpired):
        return None


def arguments(build: Build) -> str:
    """CMake arguments of a build: the first one, one without AMX, one for any processor; each of the library alone."""
    own = {
        "first": lambda: first_arguments(shlex.split(os.environ.get("CC") or "cc"), cpu_flags()),
        "without-amx": lambda: WITHOUT_AMX,
        "for-any": lambda: FOR_ANY,
    }[build]()
    return f"-DLLAVA_BUILD=OFF -DCMAKE_PROJECT_llama_cpp_INCLUDE={shlex.quote(str(_LIBRARY_ONLY))} {own}"
