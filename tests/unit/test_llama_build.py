"""The build arguments of llama.cpp where AMX works, faults, or cannot be tested."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from edge.core.llama_build import WITHOUT_AMX, amx_fails, first_arguments, header_is_bad

AMX = frozenset({"avx2", "amx_tile", "amx_int8"})
FAULTS, WORKS, IS_REFUSED = "#!/bin/sh\nkill -ILL $$\n", "#!/bin/sh\nexit 0\n", "#!/bin/sh\nexit 3\n"


BAD_LOAD = 'void load(const void *__config) { __asm__ volatile ("ldtilecfg\\t%X0" :: "m" (*((const void **)__config))); }'


def compiler_of(folder: Path, built: str, code: int = 0, header: str = "", mended: str = "") -> list[str]:
    """A compiler whose program is `built`, or `mended` where a file is included before it, or that ends with a code; its own `header`."""
    for name, text in (("built", built), ("header", header), ("mended", mended)):
        (folder / name).write_text(text, encoding="ascii")
    compiler = folder / "cc"
    compiler.write_text(
        "#!/bin/sh\nmade=built\n"
        'while [ "$1" != -o ]; do case $1 in -E) made=header;; -include) made=mended;; esac; shift; done\n'
        f'cp "{folder}/$made" "$2"\nchmod +x "$2"\nexit {code}\n',
        encoding="ascii",
    )
    compiler.chmod(0o755)
    return [str(compiler)]


@pytest.mark.parametrize(("built", "arguments"), [(FAULTS, WITHOUT_AMX), (WORKS, ""), (IS_REFUSED, "")])
def test_amx_is_left_out_of_the_first_build_only_where_its_test_program_dies(tmp_path: Path, built: str, arguments: str) -> None:
    assert first_arguments(compiler_of(tmp_path, built), AMX) == arguments


@pytest.mark.parametrize("mended", [WORKS, FAULTS])
def test_a_bad_header_is_replaced_where_the_test_program_then_lives(tmp_path: Path, mended: str) -> None:
    arguments = shlex.split(first_arguments(compiler_of(tmp_path, FAULTS, header=BAD_LOAD, mended=mended), AMX))
    if mended == FAULTS:
        assert arguments == shlex.split(WITHOUT_AMX)
    else:
        (included,) = {argument.partition("=-include ")[2] for argument in arguments}
        assert "ldtilecfg" in Path(included).read_text(encoding="ascii")


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
    right = BAD_LOAD.replace("const void **)", "const char (*)[64])")
    assert header_is_bad(["cc"], BAD_LOAD) and not header_is_bad(["cc"], right) and not header_is_bad(["no-such-compiler"])
