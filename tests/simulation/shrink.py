"""Make a failing plan simpler: fewer faults and records, default settings, fewer draws. It breaks the same rule."""

from __future__ import annotations

from msgspec import structs
from simulation.plans import Settings
from simulation.world import run

# Schedules that one shrinking may run.
MOST_RUNS = 400


class Shrinker:
    def __init__(self, plan, rule):
        self.plan, self._rule, self.runs = plan, rule, 0

    def shrink(self):
        """Return the simplest plan found that breaks the same rule."""
        size = None
        while size != (size := self._size()) and self.runs < MOST_RUNS:
            self._drop("faults")
            self._drop("rows")
            self._reset_settings()
            self._cut_streams()
        return self.plan

    def _size(self):
        return len(self.plan.faults), len(self.plan.rows), self.plan.settings, len(self.plan.cuts)

    def _keep_if_broken(self, **changes):
        if self.runs >= MOST_RUNS:
            return False
        self.runs += 1
        plan = structs.replace(self.plan, **changes)
        violation = run(plan)[1]
        if violation is None or violation.rule != self._rule:
            return False
        self.plan = plan
        return True

    def _drop(self, name):
        """Drop halves, quarters and so on from the end of a list, down to single items."""
        length = max(1, len(getattr(self.plan, name)) // 2)
        while length:
            at = len(getattr(self.plan, name)) - length
            while at >= 0:
                items = getattr(self.plan, name)
                self._keep_if_broken(**{name: items[:at] + items[at + length :]})
                at -= length
            length //= 2

    def _reset_settings(self):
        default = Settings()
        for name in Settings.__struct_fields__:
            if name not in {"exactly_once", "job"} and getattr(self.plan.settings, name) != getattr(default, name):
                changed = structs.replace(self.plan.settings, **{name: getattr(default, name)})
                self._keep_if_broken(settings=changed)

    def _cut_streams(self):
        for name, drawn in run(self.plan)[0].drawn.items():
            kept = self.plan.cuts.get(name, drawn)
            for fewer in (0, kept // 4, kept // 2):
                if fewer < kept and self._keep_if_broken(cuts={**self.plan.cuts, name: fewer}):
                    break
