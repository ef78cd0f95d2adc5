"""Isolation for programs that a model has written.

A program is judged by tests in *another* process. Both run in sandboxes of their own, used once and then destroyed with everything in
them: the program, because a model wrote it, and the judge, because tests come from data sets. They exchange plain values over two
one-way channels (`inside.wire`); the verdict travels over a third one that the program has never held. So a program can end early, print
"passed", patch `assert`, return objects with a clever `__eq__`, or answer before it is asked: it passes only by returning values that
the tests accept, and the tests and expected values are never in its memory, arguments, environment or files.

What a program cannot do in a sandbox of Linux or macOS:

- use the network, or see a socket of this machine;
- read anything but Python's standard library and the system's shared libraries: no home, project, temporary files, environment, /proc;
- write any file, so that a verdict does not depend on which sandbox there is;
- start another process, see or signal one, trace one, or leave one behind;
- go beyond its limits: wall time, CPU time, memory, threads, file size, open files, output;
- on Linux, make the system calls that programs which compute do not need (`inside.filters`).

What is *not* held back:

- a fault of the kernel: all sandboxes here share it with the machine. For programs by people who mean harm use a virtual machine;
- what can be learned from timing, caches and the names of processor and kernel; how full the machine is;
- the path under which Python is installed, and the list of system libraries. Under landlock, where no mount namespace is made, also
  whether a path exists and its size (not its content);
- heavy use of processor, memory and kernel within the limits: two processes at once, `memory_mib` of address space each;
- a program that computes the expected values by other means than was asked, e.g. by a table: tests see results only;
- `none` (`--unsafe-programs`) holds back nothing but the forged verdict.

Backends: `bubblewrap`, `landlock` (Linux without bubblewrap: Landlock, seccomp, resource limits, namespaces where allowed),
`sandbox-exec` (macOS; written after its documentation, not yet tried on a machine), `container` (docker or podman, only when asked
for), `none`. `choice.best_sandbox` tries them under a probe and takes the first that works.
"""
