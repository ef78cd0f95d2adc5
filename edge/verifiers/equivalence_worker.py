"""The process that compares mathematical answers.

Run by its path with CPU seconds and memory bytes as arguments. Writes "ready", then reads one JSON line [reference, answer] at a time and
replies "1" or "0". What runs out of CPU time is killed by the kernel: an interpreter that is computing 9^(9^9) in C hears no signal
handler, so the default action of SIGPROF has to end it. Only LaTeX is parsed; math-verify's plain expressions go through Python's
`eval`, which must never see what a model wrote.
"""

from __future__ import annotations

import contextlib
import json
import logging
import resource
import signal
import sys


def main(cpu_s: float, memory_bytes: int) -> None:
    """Compare until stdin ends."""
    _limit_memory(memory_bytes)
    logging.disable(logging.CRITICAL)
    from math_verify import LatexExtractionConfig, parse, verify

    latex = [LatexExtractionConfig()]

    def equivalent(reference: str, answer: str) -> bool:
        gold, given = (
            parse(f"\\boxed{{{text}}}", latex, fallback_mode="no_fallback", parsing_timeout=None) for text in (reference, answer)
        )
        return bool(gold and given and verify(gold, given, timeout_seconds=None))

    print("ready", flush=True)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        try:
            verdict = equivalent(*json.loads(line))
        except MemoryError:
            return
        except Exception:
            verdict = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        print("1" if verdict else "0", flush=True)


def _limit_memory(memory_bytes: int) -> None:
    with contextlib.suppress(ValueError, OSError):  # macOS refuses to limit the address space; the CPU limit stays
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
