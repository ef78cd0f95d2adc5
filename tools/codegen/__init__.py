"""Generates Python code from the protocol files with protoc.

The generated modules under edge/rpc/v1 are committed, so that an install needs no compiler; `--check` fails when they differ from
what the pinned grpcio-tools would write.
"""

from __future__ import annotations

import importlib.resources
import shutil
import tempfile
from pathlib import Path

from edge.core.errors import EdgeError

ROOT = Path(__file__).resolve().parents[2]
PROTO_ROOT = ROOT / "proto"
PACKAGE = Path("edge/rpc/v1")
PACKAGE_DOC = '"""Generated from proto/edge/rpc/v1 by `python -m tools.codegen`; never edited by hand."""\n'


def generate(proto_root: Path, out: Path) -> list[Path]:
    """Compile every .proto under `proto_root` into `out`; the written paths relative to `out`, sorted. Raises EdgeError."""
    from grpc_tools import protoc

    sources = sorted(str(path.relative_to(proto_root)) for path in (proto_root / PACKAGE).glob("*.proto"))
    includes = [f"-I{proto_root}", f"-I{importlib.resources.files('grpc_tools') / '_proto'}", f"-I{_common_protos()}"]
    (out / PACKAGE).mkdir(parents=True, exist_ok=True)
    targets = [f"--python_out={out}", f"--pyi_out={out}", f"--grpc_python_out={out}"]
    if protoc.main(["protoc", *includes, *targets, *sources]) != 0:
        raise EdgeError("protoc failed", hint="its messages above name the file and line")
    _drop_empty_services(out / PACKAGE)
    (out / PACKAGE / "__init__.py").write_text(PACKAGE_DOC)
    return sorted(path.relative_to(out) for path in (out / PACKAGE).iterdir() if path.is_file())


def regenerate(root: Path = ROOT) -> list[Path]:
    """Write the generated modules into the source tree and delete stale ones; the written paths."""
    with tempfile.TemporaryDirectory() as scratch:
        fresh = generate(root / "proto", Path(scratch))
        for stale in set(_committed(root)) - set(fresh):
            (root / stale).unlink()
        (root / PACKAGE).mkdir(parents=True, exist_ok=True)
        for path in fresh:
            shutil.copyfile(Path(scratch) / path, root / path)
    return fresh


def drift(root: Path = ROOT) -> list[Path]:
    """Generated files that are missing, stale or different, compared byte for byte; sorted."""
    with tempfile.TemporaryDirectory() as scratch:
        fresh = generate(root / "proto", Path(scratch))
        changed = [path for path in fresh if _bytes(root / path) != _bytes(Path(scratch) / path)]
    return sorted({*changed, *(set(_committed(root)) - set(fresh))})


def _common_protos() -> Path:
    """The folder that contains google/rpc/status.proto."""
    from google.rpc import status_pb2

    return Path(status_pb2.__file__).parents[2]


def _drop_empty_services(folder: Path) -> None:
    """protoc writes a _grpc module for files without a service too; those only import grpc."""
    for path in folder.glob("*_pb2_grpc.py"):
        if "Servicer" not in path.read_text():
            path.unlink()


def _committed(root: Path) -> list[Path]:
    return [path.relative_to(root) for path in (root / PACKAGE).glob("*.py*") if path.is_file()]


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None
