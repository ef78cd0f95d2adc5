"""Planted bugs: each is one changed line of the product, and the named tests must fail on it. `python -m tools.mutants [WORD ...]`

The change is made in a copy of the working tree. A bug that no test finds is printed as SURVIVED, one that keeps the tests from
running as ERROR; the exit code is then 1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from edge.core.clock import SystemClock

ROOT = Path(__file__).resolve().parents[1]
LINES_SHOWN = 15
"""Of pytest's output, where it gives no verdict."""
TESTS = {
    "edge/dagrpo/advantages": ["paper/test_advantage_laws", "unit/test_cloud_samples"],
    "edge/dagrpo/baselines": ["paper/test_rewards_and_baselines"],
    "edge/dagrpo/composition": ["paper/test_format_and_composition"],
    "edge/dagrpo/dual": ["paper/test_dual_laws"],
    "edge/dagrpo/format": ["paper/test_format_and_composition"],
    "edge/dagrpo/reward": ["paper/test_rewards_and_baselines"],
    "coordinator/ledger/fairness": ["unit/test_fairness", "contracts/test_ledger_fleet"],
    "coordinator/ledger/verify": ["unit/test_verify"],
    "coordinator/ledger/budgets": ["unit/test_used_up", "service/test_coordinator_commands"],
    "coordinator/ledger/tables": ["unit/test_ledger_sqlite"],
    "coordinator/ledger": [
        "contracts/test_ledger_store",
        "contracts/test_ledger_dual_rule",
        "contracts/test_ledger_fleet",
        "unit/test_ledger_state_machine",
    ],
    "edge/budget/dial": ["unit/test_dial"],
    "edge/privacy": ["unit/test_privacy_registry", "unit/test_egress", "unit/test_hints"],
    "edge/learning": ["unit/test_agent_resume", "unit/test_agent_step", "unit/test_agent_promotion", "unit/test_rollback"],
}
"""The files of tests that answer for a part of the product, the likeliest first."""
ADVANTAGES, DUAL, REWARD = "edge/dagrpo/advantages.py", "edge/dagrpo/dual.py", "edge/dagrpo/reward.py"
LEDGER, ACCOUNTS, VERIFY = (f"coordinator/ledger/{name}.py" for name in ("transitions", "accounts", "verify"))
TABLES = "coordinator/ledger/tables.py"
BUDGETS, FAIRNESS, DIAL = "coordinator/ledger/budgets.py", "coordinator/ledger/fairness.py", "edge/budget/dial.py"
REGISTRY, NAMES, NUMBERS = (f"edge/privacy/{name}.py" for name in ("registry", "placeholders", "numbers"))
CHECKPOINTS, SESSION, STEP = (f"edge/learning/{name}.py" for name in ("checkpoints", "session", "step"))
MUTANTS = [
    (ADVANTAGES, "- dual * (cost - mean_cost)", "+ dual * (cost - mean_cost)"),
    (ADVANTAGES, "1.0 / (group_size - 1)", "1.0 / group_size"),
    (ADVANTAGES, "*[0.0] * len(free)", "*[mean_cost] * len(free)"),
    (ADVANTAGES, "> _ROUNDING for advantage", ">= 0.0 for advantage"),
    (REWARD, "BAD_FORMAT_REWARD = -0.1", "BAD_FORMAT_REWARD = 0.0"),
    (REWARD, "return assist_reward if outcome.asked else 1.0", "return 1.0"),
    (DUAL, "return max(0.0, require_finite(", "return abs(require_finite("),
    (DUAL, "[-rule.window :]", "[: rule.window]"),
    (DUAL, "lr * missed + change))", "lr * missed))"),
    ("edge/dagrpo/composition.py", "+ cloud + local[end:]", "+ cloud"),
    ("edge/dagrpo/format.py", 'if found is None or text.count("</think>") != 1:', "if found is None:"),
    ("edge/dagrpo/baselines.py", "+ epsilon\n", "\n"),
    (LEDGER, "if known.state is not CallState.REFUNDED:", "if True:"),
    (LEDGER, "charge = settlement.charge.capped(attempt.hold)", "charge = settlement.charge"),
    (LEDGER, "if first is None or first.key == request.key:", "if True:"),
    (LEDGER, "return None if crosses else", "return None if False else"),
    (LEDGER, "if row.closed:\n            return _closed_before(row, request)", "if False:\n            pass"),
    (LEDGER, "self._doubt_all(self._tables.ask(EXPIRED_ATTEMPTS, milliseconds(now))", "self._doubt_all(()"),
    (LEDGER, "after.dual, recent=after.recent, next_step=row.step + 1", "after.dual, next_step=row.step + 1"),
    (LEDGER, "units=shared.units - member.units", "units=shared.units"),
    (LEDGER, "max(declared.get(call.prompt_id, 0), call.help_units)", "call.help_units"),
    (LEDGER, "charged = attempt.hold if charge is None else", "charged = Amount() if charge is None else"),
    (ACCOUNTS, "self.reserved.minus(hold), self.set_aside", "self.reserved, self.set_aside"),
    (ACCOUNTS, "None if limit is None else max(limit, value)", "limit"),
    (TABLES, '"step", "prompt_id"))', '"step", "prompt_id", "updated_ms"))'),
    (TABLES, '"epoch", "lease_ms"))', '"epoch", "lease_ms", "state"))'),
    (BUDGETS, "base[row.scope] = {**base[row.scope], **dict(row.changes)}", "base[row.scope] = base[row.scope]"),
    (BUDGETS, "if tightest is None or left < tightest[0]:", "if tightest is None:"),
    (FAIRNESS, "if sum(target - own for own in below) <= free:", "if True:"),
    (VERIFY, "findings.unless(entry.previous == head,", "findings.unless(True,"),
    (VERIFY, "findings.unless(entry.hash == head,", "findings.unless(True,"),
    (VERIFY, 'self._require(within, f"charged', 'self._require(True, f"charged'),
    (VERIFY, "for key in expected.keys() - seen:", "for key in ():"),
    (DIAL, "float(asked) - target_rate)", "target_rate - float(asked))"),
    (DIAL, "target_rate + accumulated_error *", "target_rate - accumulated_error *"),
    (DIAL, "(1.0 - rate) * (count + 1) - 1.0", "rate * (count + 1) - 1.0"),
    (DIAL, "rate * len(seen) / len(known)", "rate"),
    (DIAL, "if len(own) >= ENOUGH_OF_ONE_ADAPTER else", "if True else"),
    (DIAL, "self._asked.clear()", "pass"),
    (REGISTRY, "again = Known(self.known.values())", "again = Known(())"),
    (REGISTRY, '"known" for _ in values.places(text)', '"known" for _ in ()'),
    (REGISTRY, "_rules.broken([*texts, *_strings(json)])", "_rules.broken(list(texts))"),
    (REGISTRY, "> MOST_DIGITS else", "> 99 else"),
    (NAMES, "while (kind, self._next[kind]) in self._taken:", "while False:"),
    (NAMES, "if match.end() > end:", "if False:"),
    (NUMBERS, "and passes_luhn(digits)", ""),
    (NUMBERS, "% 97 == 1", "% 97 >= 0"),
    (CHECKPOINTS, "with replacing_folder(final) as draft:", "(draft := final).mkdir()\n            if True:"),
    (CHECKPOINTS, "if checkpoint.step not in needed:", "if True:"),
    (CHECKPOINTS, 'data["own_rate"]', "None"),
    (SESSION, "state.set_lineage(replace(lineage, latest=checkpoint.step", "(replace(lineage, latest=checkpoint.step"),
    (SESSION, "damage = error if number == 0 and isinstance(error, StateError) else damage\n                continue", "raise"),
    (STEP, "cursor=manifest.cursor_after,", "cursor=manifest.cursor_after + 1,"),
    (STEP, "manifest.gate_due and manifest.base ==", "manifest.gate_due or manifest.base =="),
]


class MutantError(Exception):
    """A planted bug of which the tests give no verdict; the text says why."""


def killed(tree: Path, mutant: tuple[str, str, str], tests: Sequence[str]) -> bool:
    """Whether a test fails on the bug, in a tree that is restored afterwards. Raises MutantError where pytest ends otherwise than
    with all tests passed or one failed: tests that cannot be collected or set up say nothing about what they check."""
    path, before, after = mutant
    file = tree / path
    text = file.read_text(encoding="utf-8")
    if text.count(before) != 1:
        raise MutantError(f"its line stands in {path} {text.count(before)} times, and has to once")
    file.write_text(text.replace(before, after), encoding="utf-8")
    options = ["-x", "-q", "-rfE", "-p", "no:cacheprovider", "-m", "not long", "-k", "not postgres"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    try:
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    finally:
        file.write_text(text, encoding="utf-8")
    if done.returncode == 0:
        return False
    if done.returncode == 1 and "\nFAILED " in done.stdout:
        return True
    output = (done.stdout + done.stderr).strip().splitlines()
    raise MutantError("\n".join([f"pytest ended with status {done.returncode} and no failed test", *output[-LINES_SHOWN:]]))


def main(words: list[str]) -> int:
    """Plant the bugs whose file or line has one of the words, all without any."""
    wanted = [mutant for mutant in MUTANTS if not words or any(word in mutant[0] + mutant[1] for word in words)]
    if not wanted:
        raise SystemExit(f"no bug has one of the words {', '.join(words)} in its file or line")
    verdicts, clock = Counter[str](), SystemClock()
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        shutil.copytree(ROOT, tree, symlinks=True, ignore=shutil.ignore_patterns(".*", "build", "dist", "__pycache__"))
        for path, before, after in wanted:
            began, reason = clock.monotonic(), ""
            files = next(files for part, files in TESTS.items() if path.startswith(part))
            try:
                verdict = "killed" if killed(tree, (path, before, after), [f"tests/{name}.py" for name in files]) else "SURVIVED"
            except MutantError as error:
                verdict, reason = "ERROR", f"\n{error}"
            verdicts[verdict] += 1
            print(f"{verdict:8} {clock.monotonic() - began:5.1f} s  {path}: {before!r} -> {after!r}{reason}", flush=True)
    print(f"{verdicts['killed']} of {len(wanted)} killed, {verdicts['SURVIVED']} survived, {verdicts['ERROR']} without a verdict")
    return int(verdicts["killed"] < len(wanted))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
