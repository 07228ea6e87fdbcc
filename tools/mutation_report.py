"""Report of a mutation test: the surviving mutants, and the number of mutants by module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from tools.mutants import Statement


class MutationReport:
    """Prints each mutant as soon as its result is known, and the numbers of mutants by module at the end."""

    def __init__(self, accepted_survivors: Mapping[str, str], *, show_killed: bool) -> None:
        self._accepted_survivors = accepted_survivors
        self._show_killed = show_killed
        self._killed: Counter[str] = Counter()
        self._survived: Counter[str] = Counter()
        self._accepted: Counter[str] = Counter()
        self._killed_keys: dict[str, str] = {}
        self._accepted_keys: set[str] = set()

    def add(self, module_name: str, statement: Statement, failed_test: str) -> None:
        """Count a mutant, and print it if it survived. `failed_test` is empty if it survived."""
        key = accepted_survivor_key(module_name, statement)
        if failed_test:
            self._killed[module_name] += 1
            self._killed_keys[key] = failed_test
        elif key in self._accepted_survivors:
            self._accepted[module_name] += 1
            self._accepted_keys.add(key)
            return
        else:
            self._survived[module_name] += 1
        if not failed_test or self._show_killed:
            comment = f"  # {failed_test}" if failed_test else ""
            print(f"{module_name}:{statement.first_line}: {statement.text}{comment}", flush=True)

    def killed_share(self, module_names: Iterable[str]) -> float:
        """Return the number of killed mutants, divided by the number of all mutants; 1 if there are none."""
        names = list(module_names)
        killed, survived, accepted = (
            sum(counts[name] for name in names) for counts in (self._killed, self._survived, self._accepted)
        )
        mutants = killed + survived + accepted
        return killed / mutants if mutants else 1.0

    def find_killed_accepted_survivors(self) -> dict[str, str]:
        """Return the keys of accepted survivors that a test has killed, each with the id of that test."""
        return {
            key: failed_test
            for key, failed_test in self._killed_keys.items()
            if key in self._accepted_survivors and key not in self._accepted_keys
        }

    def print_summary(self) -> None:
        """Print the accepted survivors that a test has killed, and the numbers of mutants of each module."""
        for key, failed_test in self.find_killed_accepted_survivors().items():
            print(f"{key}: remove it from ACCEPTED_SURVIVORS, because it fails {failed_test}")
        for name in sorted({*self._killed, *self._survived, *self._accepted}):
            killed, survived, accepted = self._killed[name], self._survived[name], self._accepted[name]
            counts = f"{killed} killed, {survived} survived, {accepted} accepted survivors"
            print(f"{name}: {killed + survived + accepted} mutants, {counts}", flush=True)


def accepted_survivor_key(module_name: str, statement: Statement) -> str:
    """Build the key of a mutant in ACCEPTED_SURVIVORS. It has no line number, so it stays valid when lines move."""
    return f"{module_name}: {statement.function_name}: {statement.text}"
