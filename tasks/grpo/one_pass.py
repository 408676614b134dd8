"""The old log-probabilities of an on-policy batch are those of its own update: TRL's extra pass for them is not made.

TRL corrects for the difference between vLLM and the trainer by `exp(old - sampled)` per token (truncated importance sampling) and makes a pass
without gradients over every batch to get `old`. When generation and update are aligned (`gradient_accumulation_steps` a multiple of
`steps_per_generation * num_iterations`, TRL's own condition for doing without that pass when vLLM does not sample), the weights that would make
it are the weights that the update's forward pass uses. So `old` is taken from there, detached, as TRL does without vLLM.

Same as TRL: the four modes, clip bounds, a token that vLLM could not score (NaN) counts with ratio 1, the metrics and their names. The
metrics are put together from all micro-batches of a batch of rollouts. Everything else, and every batch that is not aligned, goes TRL's way.
"""

from __future__ import annotations

from typing import Any

import torch
from trl import GRPOTrainer

MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")


class OnePassTrainer(GRPOTrainer):  # type: ignore[misc]
    """See the module."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._batch: dict[str, Any] | None = None
        self._sampled: list[tuple[torch.Tensor, torch.Tensor]] = []
        super().__init__(*args, **kwargs)

    def _corrects_in_loss(self) -> bool:
        """Whether vLLM's samples are corrected, the batch is on-policy, and TRL's loss reads the ratio from the batch."""
        aligned = self.args.gradient_accumulation_steps % (self.args.steps_per_generation * self.num_iterations) == 0
        corrected = self.use_vllm and self.vllm_importance_sampling_correction
        return corrected and aligned and self.vllm_importance_sampling_mode in MODES and not self.use_liger_kernel

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> Any:
        if not self._corrects_in_loss():
            return super()._generate_and_score_completions(inputs)
        self._sampled.clear()
        self.vllm_importance_sampling_correction = False
        try:
            return super()._generate_and_score_completions(inputs)
        finally:
            self.vllm_importance_sampling_correction = True

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        if not self._corrects_in_loss():
            loss: torch.Tensor = super()._compute_loss(model, inputs)
            return loss
        self._batch = dict(inputs)
        try:
            loss = super()._compute_loss(model, self._batch)
        finally:
            self._batch = None
        if len(self._sampled) == (self.args.steps_per_generation if self.model.training else 1):
            self._log_sampled()
        return loss

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        found = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if self._batch is not None:
            # Within the loss this is the policy; TRL reads the ratio from the batch afterwards.
            self._batch["importance_sampling_ratio"] = self._ratio(found[0].detach(), self._batch)
        return found

    def _ratio(self, old: torch.Tensor, batch: dict[str, Any]) -> torch.Tensor:
        mask, sampled = batch["completion_mask"], batch["sampling_per_token_logps"]
        if "tool_mask" in batch:
            mask = mask * batch["tool_mask"]
        mode, low, high = (
            getattr(self, f"vllm_importance_sampling_{name}") for name in ("mode", "clip_min", "clip_max")
        )
        ratio = importance_ratio(old, sampled, mask, mode, low, high)
        gap = (old - sampled).abs()[mask.bool()]
        shown = ratio[mask.bool()] if mode.startswith("token") else ratio.flatten()
        self._sampled.append((gap[~gap.isnan()], shown))
        return ratio

    def _log_sampled(self) -> None:
        """TRL's metrics of the correction over one batch of rollouts; means of processes are averaged, as TRL does."""
        gaps, ratios = (torch.cat(parts) for parts in zip(*self._sampled, strict=True))
        self._sampled.clear()
        gaps, ratios = (values if len(values) else values.new_zeros(1) for values in (gaps, ratios))
        own = torch.stack([gaps.mean(), gaps.max(), ratios.min(), ratios.mean(), ratios.max()])
        rows = self.accelerator.gather(own.unsqueeze(0))  # (processes, 5)
        values = {
            "sampling_logp_difference/mean": rows[:, 0].mean(),
            "sampling_logp_difference/max": rows[:, 1].max(),
            "importance_sampling_ratio/min": rows[:, 2].min(),
            "importance_sampling_ratio/mean": rows[:, 3].mean(),
            "importance_sampling_ratio/max": rows[:, 4].max(),
        }
        for name, value in values.items():
            self._metrics["train" if self.model.training else "eval"][f"sampling/{name}"].append(value.item())


def importance_ratio(
    old: torch.Tensor, sampled: torch.Tensor, mask: torch.Tensor, mode: str, low: float | None, high: float | None
) -> torch.Tensor:
    """Weights that correct for samples of a slightly different policy.

    Args:
        old: log-probabilities of the trainer's policy before the update, (B, T), in nats.
        sampled: those of the engine that sampled, (B, T); NaN where it gave none.
        mask: 1 for tokens that are trained on, (B, T).
        mode: one of `MODES`; `truncate` clamps to the bounds, `mask` makes what is outside them 0.
        low, high: bounds of the ratio; None for no bound.

    Returns:
        (B, T) for the token modes, (B, 1) for the sequence modes (product over the sequence).

    Worked example: old -1.0 and sampled -1.5 give exp(0.5) = 1.65 for the token.
    """
    difference = torch.nan_to_num((old - sampled) * mask, nan=0.0)
    if mode.startswith("sequence"):
        difference = difference.sum(dim=-1, keepdim=True)
    ratio = difference.exp()
    if mode.endswith("truncate"):
        return ratio.clamp(min=low, max=high)
    outside = torch.zeros_like(ratio, dtype=torch.bool)
    if low is not None:
        outside |= ratio < low
    if high is not None:
        outside |= ratio > high
    return ratio.masked_fill(outside, 0.0)
