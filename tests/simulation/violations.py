"""A broken rule of a schedule, and the comparison of results."""

from __future__ import annotations


class ViolationError(Exception):
    """``rule`` names the rule, which the shrinker keeps; ``number`` the partition, None for no particular one."""

    def __init__(self, rule, words, number=None):
        super().__init__(f"{rule}: {words}")
        self.rule, self.number = rule, number


def compare(rule, number, wanted, found):
    if wanted == found:
        return
    lost = [row for row in wanted if row not in found]
    repeated = [row for row in dict.fromkeys(found) if found.count(row) > wanted.count(row)]
    others = [row for row in found if row not in wanted]
    words = f"lost {lost[:4]}, repeated {repeated[:4]}, unexpected {others[:4]}"
    raise ViolationError(rule, f"partition {number}: " + (words if lost or repeated or others else "another order"))
