"""Which of several failures is the cause.

Failures come in chains: KL explodes, then the format breaks, then completions run into the cap. The order is: non-finite
values (nothing after them means anything); a KL explosion; what was wrong from the first rows on, in the order of RULES; what began
later, in that order too. Whatever began clearly earlier (a fifth of the run) goes first among the later ones, unless it is a
symptom by nature (no answers, all wrong, reward against accuracy).
"""

from __future__ import annotations

from collections.abc import Sequence

from tasks.diagnosis.findings import Finding

_ORDER = (
    "truncation_spiral",
    "length_collapse",
    "reward_hacking",
    "entropy_collapse",
    "extraction_failed",
    "all_wrong",
    "all_correct",
)
_FROM_START = ("extraction_failed", "truncation_spiral", "all_correct", "all_wrong", "entropy_collapse")
_PROCESSES = ("kl_explosion", "truncation_spiral", "length_collapse", "entropy_collapse")


def rank(findings: Sequence[Finding], rows: int) -> list[Finding]:
    """Failed findings, the cause first; `rows` is the number of training rows."""
    failed = sorted((f for f in findings if f.status == "failed"), key=_priority)
    if len(failed) < 2 or failed[0].name == "late_nan":
        return failed
    tolerance = max(5, rows // 5)
    head = failed[0]
    if head.name in _PROCESSES and not head.from_start:
        earlier = [f for f in failed if f.name in _PROCESSES and f.onset_row < head.onset_row - tolerance]
        if earlier:
            head = min(earlier, key=lambda f: f.onset_row)
    return [head, *(f for f in failed if f is not head)]


def _priority(finding: Finding) -> tuple[int, int]:
    if finding.name == "late_nan":
        return (0, 0)
    if finding.name == "kl_explosion":
        return (1, 0)
    if finding.from_start and finding.name in _FROM_START:
        return (2, _FROM_START.index(finding.name))
    return (3, _ORDER.index(finding.name))
