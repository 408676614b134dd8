"""The rules about what completions are paid for: no answer, all right, all wrong, the wrong thing, nothing new.

The rules about how the policy moves are in `rules`, with the list of all.
"""

from __future__ import annotations

import math
from statistics import fmean

from tasks.diagnosis.changes import accuracy_drop, reward_fell, rollout_drop
from tasks.diagnosis.dead_groups import DEAD, NO_ANSWER, dead_groups
from tasks.diagnosis.findings import Finding, missing, ok
from tasks.diagnosis.outcomes import NO_ANSWER_KINDS, RIGHT
from tasks.diagnosis.series import CLIPPED, MIN_ROWS, Run, same


def extraction_failed(run: Run) -> Finding:
    """No answer is found in 92 % of the completions and this is not getting better, or in 80 % after at most half at the start.

    Known from the rewards' declared no-match values (never from the run's own minimum), from logged outcomes, or, for undeclared rewards, from
    a reward stuck at one value. When as many completions are cut off as have no answer, that is truncation's doing.
    """
    reward = run.series("reward")
    if not reward.enough:
        return missing("extraction_failed", f"fewer than {MIN_ROWS} rows with a reward")
    dead = dead_groups(run)
    early, now = dead.shares.early.no_match, dead.shares.recent.no_match
    clipped = run.series(CLIPPED)
    cut = clipped.recent_mean if clipped.enough else 0.0
    if cut >= 0.5 and cut >= 0.8 * (1.0 if now is None else now):
        return ok("extraction_failed", CLIPPED, {"clipped_recent": cut})
    evidence = {"reward_recent": reward.recent}
    if dead.share is not None:
        evidence["zero_std_groups"] = dead.share
    if dead.blind:
        row, step = reward.onset(lambda value: abs(value - reward.recent) <= 0.02 * max(1.0, abs(reward.recent)))
        head = f"the reward stays at {reward.recent:.3g} although right and wrong answers are there: the reward function does not find them"
        return Finding("extraction_failed", "failed", head, row, step, row < 3, evidence, "reward")
    evidence |= {
        key: value
        for kind in NO_ANSWER_KINDS
        if len(run.series(key := f"outcomes/{kind}")) and (value := run.series(key).recent) >= 0.1
    }
    if now is None or early is None:
        if dead.cause == "extraction_failed":
            head = f"the reward is stuck at {reward.recent:g}: no completion is told from another, most likely no answer is ever found in them"
            row, step = reward.onset(lambda value: same(value, reward.recent))
            return Finding("extraction_failed", "failed", head, row, step, row < 3, evidence, "reward")
        if dead.shares.recent.correct is None:
            return missing("extraction_failed", "no reward function declares what it pays when it finds no answer")
        return ok("extraction_failed", evidence=evidence)
    evidence["no_answer_recent"], evidence["no_answer_early"] = now, early
    curve = "reward" if len(run.functions) != 1 else f"rewards/{run.functions[0]}/mean"
    if early >= 0.85 and now >= NO_ANSWER and (now >= 0.95 or now > early - 0.05):
        head = f"no answer is found in {now:.0%} of the completions: the reward stays at {reward.recent:.3g}, its value for 'nothing matched'"
        return Finding("extraction_failed", "failed", head, 0, reward.steps[0], True, evidence, curve)
    if (early < 0.85 and now >= NO_ANSWER) or (early <= 0.5 and now >= 0.8):
        row, step = reward.onset(lambda value: value < reward.early - 0.25 * (reward.early - reward.recent))
        head = f"no answer is found any more: {now:.0%} of the completions have none, {early:.0%} at the start"
        return Finding("extraction_failed", "failed", head, row, step, False, evidence, curve)
    return ok("extraction_failed", curve, evidence)


def all_correct(run: Run) -> Finding:
    """Nearly every completion gets the maximum, from the start. A run that got there by learning is saturated, not failed."""
    return _one_outcome(run, "all_correct")


def all_wrong(run: Run) -> Finding:
    """Well formed and nearly never right (3 %, or 5 % with 85 % of the groups dead)."""
    return _one_outcome(run, "all_wrong")


def _one_outcome(run: Run, name: str) -> Finding:
    reward = run.series("reward")
    if not reward.enough:
        return missing(name, f"fewer than {MIN_ROWS} rows with a reward")
    dead = dead_groups(run)
    early, now = dead.shares.early.correct, dead.shares.recent.correct
    if dead.share is None and now is None:
        return missing(name, "neither frac_reward_zero_std nor reward_std nor what the reward functions pay is known")
    evidence = {"reward_recent": reward.recent}
    evidence |= {} if dead.share is None else {"zero_std_groups": dead.share}
    evidence |= {} if now is None else {"right_recent": now}
    if dead.cause != name:
        return ok(name, evidence=evidence)
    right = f"{now:.1%} of the answers are right" if now is not None else f"the reward is stuck at {reward.recent:.3g}"
    groups = f", {dead.share:.0%} of the groups have no spread" if dead.share is not None else ""
    if name == "all_correct":
        began = early >= 0.8 if early is not None else (dead.early_share or 0.0) >= DEAD
        if not began:
            return Finding(
                "saturated", "note", f"{right}{groups}: these problems have nothing left to teach", evidence=evidence
            )
        rose = early is not None and now is not None and now - early >= 0.05
        since = f" ({early:.1%} at first)" if rose else " from the start"
        return Finding(
            name,
            "failed",
            f"{right}{since}{groups}: the problems are too easy",
            0,
            reward.steps[0],
            True,
            evidence,
        )
    began = early <= 0.05 if early is not None else (dead.early_share or 0.0) >= DEAD
    row, step = (
        (0, reward.steps[0])
        if began
        else reward.onset(lambda value: value < reward.early - 0.5 * (reward.early - reward.recent))
    )
    return Finding(
        name, "failed", f"{right}{groups}: the problems are too hard for this model", row, step, began, evidence
    )


def reward_hacking(run: Run) -> Finding:
    """The reward rises while accuracy falls: by a fifth, 5 points and three times its noise, since its best.

    Accuracy is that on held-out problems, or the share of right rollouts from a grader that is not the reward (`outcomes/right`); when
    half of those are gone, it is enough that the reward has not fallen.
    `eval_reward` is the same function as the reward and cannot show it.
    """
    held_out, rollouts = accuracy_drop(run), rollout_drop(run)
    drops = [
        (drop, key)
        for drop, key in ((held_out, run.accuracy_key), (rollouts, RIGHT))
        if drop is not None and key is not None
    ]
    if not drops or not run.series("reward").enough:
        what = "no accuracy on held-out problems is logged (eval_accuracy): a hacked reward cannot be seen without it"
        if run.accuracy_key is not None:
            what = f"{run.accuracy_key} has {len(run.accuracy)} values, 3 are needed"
        return missing("reward_hacking", what)
    for drop, key in drops:
        change = run.reward_change(drop.row)
        evidence = {"accuracy_best": drop.before, "accuracy_now": drop.now, "reward_change_in_std": change}
        name = "held-out accuracy" if key == run.accuracy_key else "the share of right answers"
        # The rollouts that the grader finds wrong are those that were paid: a reward that only stays has lost sight of the answers.
        unmoved = key == RIGHT and drop.now <= 0.5 * drop.before and not reward_fell(run)
        if drop.fell and (change >= 0.1 or unmoved):
            how = "rises" if change >= 0.1 else "stays"
            head = f"the reward {how} while {name} fell from {drop.before:.2f} to {drop.now:.2f}"
            return Finding("reward_hacking", "failed", head, drop.row, drop.step, False, evidence, key)
    if held_out is not None and held_out.fell:
        head = f"held-out accuracy fell from {held_out.before:.2f} to {held_out.now:.2f}"
        return Finding("accuracy_drop", "note", head, curve=run.accuracy_key or RIGHT)
    return ok("reward_hacking", drops[0][1], {"accuracy_best": drops[0][0].before, "accuracy_now": drops[0][0].now})


def starving(run: Run) -> Finding:
    """A note only: 70 % of the groups have no spread though the batch has, or, where this pipeline's ledger is logged, are not live.

    With refilling, what counts is what is left in the batch.
    """
    dead, key, share = dead_groups(run), "frac_reward_zero_std", None
    for name in ("refill/live_after", "groups/live"):
        if run.series(name).enough:
            key, share = name, 1 - fmean(run.series(name).values[-10:])
            break
    if share is None and dead.share is None:
        logged = [key for key in ("frac_reward_zero_std", "groups/live") if len(run.series(key))]
        few = f"fewer than {MIN_ROWS} values of {logged[0]}" if logged else ""
        return missing("dead_groups", few or "neither frac_reward_zero_std nor groups/live is logged")
    if dead.cause == "mixed" and dead.share is not None:
        head = f"{dead.share:.0%} of the groups have no spread and teach nothing"
        return Finding("dead_groups", "note", head, curve=dead.key, evidence={"zero_std_groups": dead.share})
    if dead.cause in ("mixed", "none") and share is not None and share >= DEAD:
        head = f"{share:.0%} of the groups teach nothing about being right"
        return Finding("dead_groups", "note", head, curve=key, evidence={"dead_groups": share})
    return ok("dead_groups", key)


def plateau(run: Run) -> Finding:
    """A note only, from 20 rows on: the last quarter's mean reward is within two standard errors of the quarter's before it."""
    reward = run.series("reward")
    quarter = len(reward) // 4
    if quarter < 5:
        return missing("plateau", "fewer than 20 rows with a reward")
    before, last = reward.values[-2 * quarter : -quarter], reward.values[-quarter:]
    if max(reward.values) == min(reward.values):
        return ok("plateau")
    if abs(fmean(last) - fmean(before)) <= 2 * reward.noise * math.sqrt(2 / quarter):
        head = f"the reward has not moved over the last {2 * quarter} rows ({fmean(last):.3g})"
        looks = [
            v for i, v in zip(run.accuracy.rows, run.accuracy.values, strict=True) if i >= len(run.train) - 2 * quarter
        ]
        if len(looks) >= 2:
            head += f"; held-out accuracy went from {looks[0]:.2f} to {looks[-1]:.2f}"
        return Finding("plateau", "note", head, evidence={"reward_before": fmean(before), "reward_last": fmean(last)})
    return ok("plateau")
