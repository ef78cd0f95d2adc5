"""The build arguments of llama.cpp where AMX works, faults, or cannot be tested."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from edge.core.llama_build import WITHOUT_AMX, amx_fails, first_arguments, header_is_bad

AMX = frozenset({"avx2", "amx_tile", "amx_int8"})
FAULTS, WORKS, IS_REFUSED = "#!/bin/sh\nkill -ILL $$\n", "#!/bin/sh\nexit 0\n", "#!/bin/sh\nexit 3\n"


def compiler_of(folder: Path, built: str, code: int = 0) -> list[str]:
    """A compiler whose program is `built`, or that ends with a code."""
    (folder / "built").write_text(built, encoding="ascii")
    compiler = folder / "cc"
    compiler.write_text(
        f'#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\ncp {folder / "built"} "$2"\nchmod +x "$2"\nexit {code}\n',
        encoding="ascii",
    )
    compiler.chmod(0o755)
    return [str(compiler)]


@pytest.mark.parametrize(("built", "arguments"), [(FAULTS, WITHOUT_AMX), (WORKS, ""), (IS_REFUSED, "")])
def test_amx_is_left_out_of_the_first_build_only_where_its_test_program_dies(tmp_path: Path, built: str, arguments: str) -> None:
    assert first_arguments(compiler_of(tmp_path, built), AMX) == arguments


def test_build_is_unchanged_without_amx_or_a_compiler_that_supports_it(tmp_path: Path) -> None:
    assert first_arguments(compiler_of(tmp_path, FAULTS), {"avx2", "amx_tile"}) == ""
    assert first_arguments(compiler_of(tmp_path, FAULTS, code=1), AMX) == ""
    assert first_arguments([str(tmp_path / "none")], AMX) == ""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_illegal_instruction_is_detected_with_a_real_compiler() -> None:
    probe = subprocess.run(["cc", "-mamx-tile", "-mamx-int8", "-E", "-x", "c", "/dev/null"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("this compiler knows no AMX")
    assert amx_fails(["cc"], "int main(void) { __builtin_trap(); }") and not amx_fails(["cc"], "int main(void) { return 0; }")


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_header_that_mistakes_tile_shapes_for_a_pointer_is_detected() -> None:
    load = 'void load(const void *__config) { __asm__ volatile ("ldtilecfg\\t%X0" :: "m" (*(('
    assert header_is_bad(["cc"], load + "const void **)__config))); }")
    assert not header_is_bad(["cc"], load + "const char (*)[64])__config))); }") and not header_is_bad(["no-such-compiler"])
