"""A process takes its own rights away, for good: Landlock, seccomp, capabilities, namespaces.

Sent as code in front of the loader, so it uses the standard library only. The process has one thread when this runs. There is no PID
namespace: the filter refuses signals to others and new processes, so that one process can be ended and waited for as a whole.
"""

from __future__ import annotations

import ctypes
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

OWN_PID = 0x7F00BEEF
"""The filter's placeholder for the process's own number, which is known only here."""
_NAMESPACES = 0x10000000 | 0x40000000 | 0x08000000 | 0x04000000  # user, network, IPC, host name
_NEW_USER = 0x10000000
_PDEATHSIG, _NO_NEW_PRIVS, _SET_SECCOMP, _CAPBSET_DROP = 1, 38, 22, 24
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_READ_FILE, _READ_DIR, _WRITE_FILE = 1 << 2, 1 << 3, 1 << 1
_NETWORK, _SCOPED = 0b11, 0b11
_SIGKILL = 9  # without importing signal, which takes as long as all the rest
_CAPSET = {"x86_64": 126, "aarch64": 91, "arm64": 91}

_libc = ctypes.CDLL(None, use_errno=True)


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _BeneathPath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def landlock_version() -> int:
    """Which Landlock the kernel has; 0 for none."""
    return max(int(_libc.syscall(_CREATE_RULESET, None, 0, 1)), 0)


def confine(parent: int, folders: Iterable[str], files: Iterable[str], listed: Iterable[str], filter_code: bytes) -> None:
    """Keep only reading of `folders` and `files`, listing of `listed`, and /dev/null. Raises OSError when a right cannot be dropped."""
    os.chdir("/")
    _must(_libc.prctl(_PDEATHSIG, _SIGKILL, 0, 0, 0))
    if os.getppid() != parent:
        os._exit(95)
    if _libc.unshare(_NAMESPACES) != 0:
        _libc.unshare(_NAMESPACES & ~_NEW_USER)  # as root; where neither is allowed, the filter alone keeps the network away
    _drop_capabilities()
    _must(_libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))
    _restrict_files(folders, files, listed)
    _load_filter(filter_code.replace(OWN_PID.to_bytes(4, "little"), os.getpid().to_bytes(4, "little")))


def _must(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _drop_capabilities() -> None:
    for capability in range(64):
        _libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    none = (ctypes.c_uint32 * 6)()
    _must(_libc.syscall(_CAPSET[os.uname().machine], header, none))


def _restrict_files(folders: Iterable[str], files: Iterable[str], listed: Iterable[str]) -> None:
    version = landlock_version()
    handled = (1 << (13 if version < 2 else 14 if version < 3 else 15 if version < 5 else 16)) - 1
    ruleset = _Ruleset(handled, _NETWORK if version >= 4 else 0, _SCOPED if version >= 6 else 0)
    size = 8 if version < 4 else 16 if version < 6 else 24
    rules = _must(_libc.syscall(_CREATE_RULESET, ctypes.byref(ruleset), size, 0))
    for paths, allowed in (
        (folders, _READ_FILE | _READ_DIR),
        (files, _READ_FILE),
        (listed, _READ_DIR),
        (("/dev/null",), _READ_FILE | _WRITE_FILE),
    ):
        for path in paths:
            _allow(rules, path, allowed)
    _must(_libc.syscall(_RESTRICT_SELF, rules, 0))
    os.close(rules)


def _allow(rules: int, path: str, allowed: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    rule = _BeneathPath(allowed, place)
    _must(_libc.syscall(_ADD_RULE, rules, 1, ctypes.byref(rule), 0))
    os.close(place)


def _load_filter(code: bytes) -> None:
    program = _Filter(len(code) // 8, code)
    _must(_libc.prctl(_SET_SECCOMP, 2, ctypes.byref(program), 0, 0))
