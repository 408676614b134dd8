"""TRL's GRPOTrainer with bounded dynamic sampling (DAPO, arXiv 2503.14476, section 3.2) and the dead-group ledger.

For each batch of rollouts: draw the batch's prompts, score them, and replace groups that are not live (`grpo.live_when`) by groups of other
prompts (`ledger.KnownPrompts` says which), for at most `max_refills` rounds; what is still dead then stays in the batch. TRL's own code then does the rest with the batch that came
out (log-probabilities, advantages, the split into steps): here only `_generate` and `_calculate_rewards` return what is there already.
So batch size, `steps_per_generation` and `num_iterations` mean what they mean in TRL, and rollouts come from transformers or vLLM alike.

Metrics. `reward`, `reward_std`, `rewards/*`, `completions/*`, `outcomes/*` and `groups/*` describe the first draw, an unbiased sample of the
policy: curves with and without refilling can be laid side by side, and the watchdog is not misled by the selection.
`frac_reward_zero_std` is of the batch that is trained on. `refill/*` counts.

Resume. The prompts of a refill depend on seed, step, round and the groups tried before, which groups.jsonl keeps; sampling with transformers depends on torch's generator, which a
checkpoint keeps; TRL's sampler draws a new order for each pass over the prompts, and `resumed_at` lets it draw those of the passes that
are over. So a run resumed from a checkpoint goes on exactly as it would have (not with vLLM, whose generator no checkpoint holds).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from trl import GRPOTrainer

from tasks.contract.grading import Grade
from tasks.errors import ConfigError
from tasks.grpo.chunked import ChunkedTrainer
from tasks.grpo.ledger import Group, KnownPrompts, append_groups, group_of, read_groups, shares
from tasks.grpo.one_pass import OnePassTrainer
from tasks.grpo.weight_sync import leave_base_alone
from tasks.training.unsloth import in_use

Grader = Callable[[dict[str, Any]], list[Grade]]


class LeanTrainer(OnePassTrainer, ChunkedTrainer):
    """TRL's trainer with the same result in less time and memory."""


# Unsloth replaces the very methods that those override.
Base: Any = GRPOTrainer if in_use() else LeanTrainer


@dataclass
class Draw:
    """Rollouts of some prompts: trainer rows (B), what `_generate` returned for them, rewards (B, functions), groups (B / G)."""

    inputs: list[dict[str, Any]]
    generated: tuple[Any, ...]
    rewards: torch.Tensor
    groups: list[Group]


class LedgerTrainer(Base):  # type: ignore[misc]
    """See the module.

    Args:
        grader: grades completions, given what a reward function is given.
        groups_file: gets a line for every group tried.
        rule: which groups are live, `mixed` or `spread`.
        max_refills: rounds of refilling per batch of rollouts; 0 trains exactly as TRL does and only keeps the ledger.

    Attributes:
        resumed_at: optimizer step of the checkpoint that training goes on from; set before `train`.

    Raises:
        ConfigError: refilling was asked for on more than one process.
    """

    def __init__(
        self, *args: Any, grader: Grader, groups_file: Path, rule: str, max_refills: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.grader, self.groups_file, self.rule, self.max_refills = grader, groups_file, rule, max_refills
        if self.use_vllm and not in_use():
            leave_base_alone(self.vllm_generation, self.model)
        self.resumed_at = 0
        self._in_training = True
        self._ready: Draw | None = None
        self._known: KnownPrompts | None = None
        self._ids: list[str] = []
        if max_refills and self.accelerator.num_processes > 1:
            raise ConfigError(
                f"dynamic sampling works on one process, this run has {self.accelerator.num_processes}",
                where="grpo.max_refills",
                fix="set grpo.max_refills=0, or train on one GPU",
            )

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        sampler = super()._get_train_sampler(dataset)
        groups = self.args.generation_batch_size // self.num_generations
        per_pass = len(self.train_dataset) // groups * self.num_iterations
        if sampler.shuffle and self.args.steps_per_generation == self.args.gradient_accumulation_steps and per_pass:
            for _ in range(self.resumed_at // per_pass):
                torch.randperm(len(self.train_dataset), generator=sampler.generator)
        return sampler

    def _generate(self, prompts: list[Any]) -> Any:
        return super()._generate(prompts) if self._ready is None else self._ready.generated

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
        if self._ready is not None:
            return self._ready.rewards
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        # On several processes the rewards are gathered and the rows are not: then no ledger is kept.
        if self._in_training and self.max_refills == 0 and len(rewards) == len(inputs):
            groups = self._groups(inputs, completions, completion_ids_list, rewards)
            self._log(shares(groups))
            self._record((0, group, True) for group in groups)
        return rewards

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> Any:
        # Unsloth puts the model into training mode before the rewards are computed, in an evaluation, too.
        self._in_training = self.model.training
        if not self.model.training or self.max_refills == 0:
            return super()._generate_and_score_completions(inputs)
        first = self._draw(inputs)
        metrics = {key: list(values) for key, values in self._metrics["train"].items()}
        pending = {key: list(values) for key, values in self._pending_metrics.items()}
        batch, counts = self._refilled(first)
        # TRL logs what is pending, and averages it: only the first draw is to be in there.
        self._metrics["train"].clear()
        self._metrics["train"].update({**metrics, "num_tokens": [self.state.num_input_tokens_seen]})
        self._pending_metrics.clear()
        self._pending_metrics.update(pending)
        self._pending_extra_logs.clear()
        self._log({**shares(first.groups), **counts})
        self._ready = batch
        try:
            output = super()._generate_and_score_completions(batch.inputs)
        finally:
            self._ready = None
        self._log_rewards(first.rewards)
        return output

    def _draw(self, inputs: list[dict[str, Any]]) -> Draw:
        prompts = [row["prompt"] for row in inputs]
        generated = super()._generate(prompts)
        ids, completions = generated[1], generated[3]
        rewards = super()._calculate_rewards(inputs, prompts, completions, ids)
        return Draw(inputs, generated, rewards, self._groups(inputs, completions, ids, rewards))

    def _refilled(self, first: Draw) -> tuple[Draw, dict[str, float]]:
        """The batch that is trained on, and counts for the log; records what was tried."""
        size, batch = self.num_generations, first
        tried: list[tuple[int, Group, bool]] = []
        seen = {group.prompt_id for group in first.groups}
        live = sum(group.live for group in first.groups)
        extra = filled = rounds = 0
        while rounds < self.max_refills:
            dead = [at for at, group in enumerate(batch.groups) if not group.live]
            rows = self._others(len(dead), rounds + 1, seen)
            if not rows:
                break
            rounds += 1
            seen.update(str(row["id"]) for row in rows)
            draw = self._draw([row for row in rows for _ in range(size)])
            extra += len(draw.inputs)
            good = [at for at, group in enumerate(draw.groups) if group.live]
            tried += [(rounds, group, group.live) for group in draw.groups]
            filled += len(good)
            batch = replaced(batch, dead[: len(good)], draw, good, size)
        kept = {id(group) for group in batch.groups}
        self._record([*((0, group, id(group) in kept) for group in first.groups), *tried])
        return batch, {
            "refill/rounds": float(rounds),
            "refill/tried": float(len(tried)),
            "refill/filled": float(filled),
            "refill/live_before": live / len(first.groups),
            "refill/live_after": (live + filled) / len(first.groups),
            "refill/extra_rollouts": float(extra),
        }

    def _others(self, count: int, number: int, seen: set[str]) -> list[dict[str, Any]]:
        """At most `count` rows of the training set that this step has not tried."""
        data: Any = self.train_dataset
        if self._known is None:
            # Not earlier: a resumed stage first drops what was tried after its checkpoint.
            self._known, self._ids = KnownPrompts(read_groups(self.groups_file)), [str(name) for name in data["id"]]
        chance = random.Random(f"{self.args.seed}/{self.state.global_step}/{number}")
        return [data[at] for at in self._known.best(self._ids, count, seen, chance)] if count else []

    def _groups(self, inputs: Any, completions: Any, ids: Any, rewards: torch.Tensor) -> list[Group]:
        grades = self.grader(
            {"completions": completions, "completion_ids": ids, "answer": [row["answer"] for row in inputs]}
        )
        total, size = self._totals(rewards).tolist(), self.num_generations
        return [
            group_of(str(inputs[at]["id"]), total[at : at + size], grades[at : at + size], self.rule)
            for at in range(0, len(inputs), size)
        ]

    def _totals(self, rewards: torch.Tensor) -> torch.Tensor:
        """Weighted sums as TRL forms them: (B, functions) -> (B,); NaN where no function gave a number."""
        total = (rewards * self.reward_weights.to(rewards.device).unsqueeze(0)).nansum(dim=1)
        total[torch.isnan(rewards).all(dim=1)] = torch.nan
        return total

    def _log(self, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._metrics["train"][name].append(value)

    def _log_rewards(self, rewards: torch.Tensor) -> None:
        """Put the first draw's rewards where TRL has just logged those of the batch that is trained on."""
        metrics = self._metrics["train"]
        columns = {("reward", "reward_std"): self._totals(rewards)}
        for name, values in zip(self.reward_func_names, rewards.T, strict=True):
            columns[f"rewards/{name}/mean", f"rewards/{name}/std"] = values
        for (mean, std), values in columns.items():
            scored = values[~torch.isnan(values)]
            metrics[mean][-1] = scored.mean().item()
            metrics[std][-1] = scored.std().item() if len(scored) > 1 else 0.0

    def _record(self, drawn: Iterable[tuple[int, Group, bool]]) -> None:
        drawn = list(drawn)
        append_groups(self.groups_file, self.state.global_step + 1, drawn)
        if self._known is not None:
            for _, group, _ in drawn:
                self._known.add(group.prompt_id, group.live)


def replaced(batch: Draw, places: Sequence[int], draw: Draw, chosen: Sequence[int], size: int) -> Draw:
    """`batch` with the groups at `places` replaced by the groups `chosen` of `draw`; `size` rows a group."""
    inputs, rewards, groups = list(batch.inputs), batch.rewards.clone(), list(batch.groups)
    generated = [list(part) if _per_row(part, batch) else part for part in batch.generated]
    for to, source in zip(places, chosen, strict=True):
        a, b = slice(to * size, (to + 1) * size), slice(source * size, (source + 1) * size)
        inputs[a], rewards[a], groups[to] = draw.inputs[b], draw.rewards[b], draw.groups[source]
        for part, fresh in zip(generated, draw.generated, strict=True):
            if isinstance(part, list) and _per_row(part, batch):
                part[a] = fresh[b]
    return Draw(inputs, tuple(generated), rewards, groups)


def _per_row(part: Any, batch: Draw) -> bool:
    """Prompt ids, completion ids, completions and sampled log-probabilities have an entry a row; the rest is empty or None for text."""
    return isinstance(part, list) and len(part) == len(batch.inputs)
