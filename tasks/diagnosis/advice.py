"""What to do about each verdict: the first thing to look at, and the one setting to turn.

Settings are named as in TRL's GRPOConfig; this pipeline's `grpo` section uses the same names.
"""

from __future__ import annotations

from typing import NamedTuple


class Advice(NamedTuple):
    """`title` for headings; `first_step`: look at this before changing anything; `knob`: the setting, and which way."""

    title: str
    first_step: str
    knob: str


ADVICE: dict[str, Advice] = {
    "healthy": Advice("No failure found", "Nothing to do.", ""),
    "late_nan": Advice(
        "Values are not finite",
        "Go back to the last checkpoint before the onset; train in bf16, not fp16; look at grad_norm just before it. "
        "Where only the reward is not finite, call each reward function on a few completions.",
        "learning_rate: halve it (and max_grad_norm at most 1)",
    ),
    "kl_explosion": Advice(
        "The policy runs away from its reference",
        "Go back to the last checkpoint before the onset; nothing after it is worth keeping.",
        "learning_rate: halve it; if that is not enough, raise beta",
    ),
    "extraction_failed": Advice(
        "No answer is found in the completions",
        "Print three completions as the reward function gets them and compare each tag letter by letter with what it looks for. Tags "
        "registered as special tokens are removed by the trainer's decode: make them ordinary text.",
        "the SFT cold start: more worked traces in exactly this format (more GRPO steps or a larger group cannot help)",
    ),
    "truncation_spiral": Advice(
        "Completions run into the length cap",
        "Read the ends of three cut completions: still at work (raise the cap) or repeating itself (the stop is not learnt; SFT must show it).",
        "max_completion_length: double it; or penalise overlong completions",
    ),
    "length_collapse": Advice(
        "Completions shrink to almost nothing",
        "Read three completions from before and after the onset: does the reward pay short or empty working as much as real working?",
        "the reward: no term that falls with length; then beta up",
    ),
    "reward_hacking": Advice(
        "The reward rises, the answers get worse",
        "Read the ten best paid completions of the last step: what do they get paid for? Keep the checkpoint with the best held-out accuracy.",
        "the reward function: close that loophole (more training makes it worse)",
    ),
    "entropy_collapse": Advice(
        "Completions of one prompt have become copies",
        "Count distinct completions in one group; check the sampling settings of the rollouts (temperature, top_p, top_k).",
        "temperature: back to 1.0; then epsilon_high 0.28 or a lower learning_rate",
    ),
    "all_correct": Advice(
        "The problems are too easy",
        "Look at the pass rate per problem; every group without a wrong answer is wasted.",
        "the problems: harder ones, or only those the model solves in part of its tries",
    ),
    "all_wrong": Advice(
        "The problems are too hard",
        "Score three gold answers with the reward function (each must get the maximum), then look at the pass rate per problem.",
        "the problems: easier ones first, or more SFT on worked traces; a larger num_generations helps only above about 3 % right",
    ),
}
