"""A seccomp filter as bytes.

It refuses (EPERM) what a program that computes never does: looking into or steering other processes, new processes, namespaces, mounts,
keys, sockets, shared memory outside the memory limit, kernel modules, clocks, and signals through descriptors. A system call newer than
the ones known here does not exist (ENOSYS), and neither does clone3, so that the C library falls back to clone, whose flags can be
read. Threads are allowed, and so are private pairs of stream sockets: with asyncio they are part of honest programs. A datagram socket
could send to any Unix socket of this machine by its name, so there are none; no message may name a receiver or carry descriptors, and
what sockets report of their other end and can be set to is refused. Another processor mode (32 bit) ends the process.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# name: (x86-64, arm64); None where the architecture has no such call
_OTHER_PROCESSES = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "kcmp": (312, 272), "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424), "migrate_pages": (256, 238), "move_pages": (279, 239),
    "setpriority": (141, 140), "ioprio_set": (251, 30), "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119), "sched_setparam": (142, 118), "sched_setattr": (314, 274),
}  # fmt: skip
_NEW_PROCESSES = {"fork": (57, None), "vfork": (58, None)}
_SYSTEM = {
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "setns": (308, 268), "unshare": (272, 97),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104), "kexec_file_load": (320, 294),
    "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89), "quotactl": (179, 60),
    "quotactl_fd": (443, 443), "syslog": (103, 116), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "clock_adjtime": (305, 266), "adjtimex": (159, 171), "sethostname": (170, 161), "setdomainname": (171, 162),
    "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None), "vhangup": (153, 58),
    "nfsservctl": (180, 42), "lookup_dcookie": (212, 18), "uselib": (134, None), "personality": (135, 92),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263), "inotify_init": (253, None), "inotify_init1": (294, 26), "vmsplice": (278, 75),
    "mbind": (237, 235), "set_mempolicy": (238, 237), "set_mempolicy_home_node": (450, 450),
}  # fmt: skip
_MEMORY_OUTSIDE_THE_LIMIT = {
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190), "semctl": (66, 191),
    "semop": (65, 193), "semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188),
    "msgctl": (71, 187), "mq_open": (240, 180), "memfd_create": (319, 279), "memfd_secret": (447, 447),
}  # fmt: skip
_NETWORK = {
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201), "accept": (43, 202),
    "accept4": (288, 242), "sendmsg": (46, 211), "sendmmsg": (307, 269), "recvmsg": (47, 212), "recvmmsg": (299, 243),
    "setsockopt": (54, 208),
}  # fmt: skip
_REFUSED = {**_OTHER_PROCESSES, **_NEW_PROCESSES, **_SYSTEM, **_MEMORY_OUTSIDE_THE_LIMIT, **_NETWORK}
# Where the filter is used without a namespace and a user of its own (landlock): what acts on files by owner and on processes by user.
_FILES_BY_OWNER = {
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "chown": (92, None), "fchown": (93, 55),
    "lchown": (94, None), "fchownat": (260, 54), "utime": (132, None), "utimes": (235, None),
    "futimesat": (261, None), "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "truncate": (76, 45), "setpgid": (109, 154), "setsid": (112, 157), "execve": (59, 221), "execveat": (322, 281),
}  # fmt: skip
_BY_PROCESS = {"kill": (62, 129), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240)}
_TKILL, _PRLIMIT = (200, 130), (302, 261)
_CLONE, _CLONE3, _SOCKETPAIR, _IOCTL, _FCNTL, _PRCTL = (56, 220), (435, 435), (53, 199), (16, 29), (72, 25), (157, 167)
_SENDTO, _RECVFROM, _GETSOCKOPT = (44, 206), (45, 207), (55, 209)
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7), "arm64": (1, 0xC00000B7)}
_NEWEST_KNOWN = 451

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16
_ALLOW, _REFUSE, _UNKNOWN, _KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
_CLONE_THREAD, _AF_UNIX, _SOCK_STREAM, _SOCK_TYPES, _MSG_OOB = 0x10000, 1, 1, 0xF, 1
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: typing into the terminal of whoever started us
_SIGNAL_OWNERS = (0x8901, 0x8902)  # FIOSETOWN, SIOCSPGRP: signals to others through a descriptor
_OUTLIVE_PARENT = (1,)  # PR_SET_PDEATHSIG: a sandbox ends with the process that started it
_OTHER_END = (17, 31, 59, 77)  # SO_PEERCRED, SO_PEERSEC, SO_PEERGROUPS, SO_PEERPIDFD
_FCNTL_SIGNALS = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX


def known_machine(machine: str) -> bool:
    """Whether there is a filter for this processor, named as by os.uname()."""
    return machine in _ARCHITECTURES


def program_filter(machine: str, *, own_pid: int | None = None) -> bytes:
    """The filter's instructions, 8 bytes each. With `own_pid` also what a process of its own namespaces need not fear is refused:
    signals and limits to others, changing files it owns, starting another program. Raises KeyError for an unknown processor."""
    column, arch = _ARCHITECTURES[machine]
    calls = dict(_REFUSED) if own_pid is None else {**_REFUSED, **_FILES_BY_OWNER, "tkill": _TKILL}
    code = [(_LOAD, 0, 0, _ARCH_AT), (_EQUAL, 1, 0, arch), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NUMBER_AT)]
    code += [(_AT_LEAST, 0, 1, _NEWEST_KNOWN + 1), (_RETURN, 0, 0, _UNKNOWN)]
    for numbers in calls.values():
        if (number := numbers[column]) is not None:
            code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE)]
    code += [(_EQUAL, 0, 1, _CLONE3[column]), (_RETURN, 0, 0, _UNKNOWN)]
    code += _only_if(_CLONE[column], 0, [(_ANY_BIT, 0, 1, _CLONE_THREAD)])
    code += _only_if(
        _SOCKETPAIR[column],
        0,
        [(_EQUAL, 0, 4, _AF_UNIX), _argument(1), (_AND, 0, 0, _SOCK_TYPES), (_EQUAL, 0, 1, _SOCK_STREAM)],
    )
    # No out-of-band bytes, which the kernel has often got wrong; no address, in either half of the pointer.
    nobody = [(_ANY_BIT, 5, 0, _MSG_OOB), _argument(4), (_EQUAL, 0, 3, 0), _argument(4, high=True), (_EQUAL, 0, 1, 0)]
    code += _only_if(_SENDTO[column], 3, nobody)
    code += _only_if(_RECVFROM[column], 3, [(_ANY_BIT, 1, 0, _MSG_OOB)])
    code += _unless(_GETSOCKOPT[column], 2, _OTHER_END)
    code += _unless(_IOCTL[column], 1, (*_TERMINAL_INPUT, *_SIGNAL_OWNERS))
    code += _unless(_FCNTL[column], 1, _FCNTL_SIGNALS)
    code += _unless(_PRCTL[column], 0, _OUTLIVE_PARENT)
    if own_pid is not None:
        for numbers in _BY_PROCESS.values():
            code += _only_if(numbers[column], 0, [(_EQUAL, 0, 1, own_pid)])
        code += _only_if(_PRLIMIT[column], 0, [(_EQUAL, 1, 0, 0), (_EQUAL, 0, 1, own_pid)])
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(
        operation.to_bytes(2, "little") + bytes((then, otherwise)) + value.to_bytes(4, "little")
        for operation, then, otherwise, value in code
    )


def _argument(number: int, *, high: bool = False) -> tuple[int, int, int, int]:
    """Load one half of an argument (both processors are little-endian)."""
    return (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * number + 4 * high)


def _only_if(number: int | None, argument: int, test: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Refuse the call unless `test` of its argument (low 32 bits) ends on the allowed side; then go on with the number loaded again.

    The last step of `test` jumps over nothing when it holds and over one instruction when not.
    """
    assert number is not None
    body = [_argument(argument), *test, (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)]
    return [(_EQUAL, 0, len(body), number), *body]


def _unless(number: int | None, argument: int, refused: Iterable[int]) -> list[tuple[int, int, int, int]]:
    """Refuse the call where its argument (low 32 bits) is one of `refused`."""
    assert number is not None
    body = [_argument(argument)]
    for value in refused:
        body += [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, _REFUSE)]
    body.append((_RETURN, 0, 0, _ALLOW))
    return [(_EQUAL, 0, len(body), number), *body]
