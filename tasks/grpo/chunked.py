"""Log-probabilities of completion tokens without the logits of a whole batch.

TRL computes logits (B, T, V), a float32 copy divided by the temperature, and log-softmaxes of them; at a vocabulary of 150,000 that is 0.6 MB a
token and copy. Here the model's body gives its last hidden states, and the LM head is applied to chunks of `LOGITS_CHUNK` tokens, which the
backward pass computes again (`torch.utils.checkpoint`). Same as TRL: the head's own precision, then log-softmax in float32 of logits
divided by the sampling temperature; entropies carry no gradient. Tokens outside the attention mask get 0: every
loss and metric of TRL multiplies by that mask or picks by it (so a masked token's importance ratio is exp(0 - 0) = 1).

TRL pads prompts on the left, and attention then needs a mask, which rules out the kernels of FlashAttention. Here the rows are moved to
the left: no token looks at a later one, so padding at the end needs no mask, and what is computed there is not used.

Only on one process, for text models whose logits are nothing but a Linear of the last hidden states (`arithmetic.PLAIN_HEADS`), without an
entropy bonus or a router loss. Everything else goes TRL's way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from accelerate.utils import DistributedType
from peft.tuners.tuners_utils import BaseTunerLayer
from torch.utils.checkpoint import checkpoint
from trl import GRPOTrainer
from trl.trainer.utils import entropy_from_logits

from tasks.grpo.arithmetic import LOGITS_CHUNK, plain_head

Head = Callable[[torch.Tensor], torch.Tensor]


class ChunkedTrainer(GRPOTrainer):  # type: ignore[misc]
    """See the module."""

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        compute_aux_loss: bool = False,
        **media: Any,
    ) -> Any:
        text = all(value is None for value in media.values())
        head = self._head(model) if text and not compute_aux_loss and not self._entropy_bonus_enabled else None
        if head is None:
            return super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy, compute_aux_loss, **media
            )
        body = causal_model(model).base_model
        rows = batch_size or len(input_ids)
        found = []
        for ids, mask in zip(input_ids.split(rows), attention_mask.split(rows), strict=True):
            # Calling the parts of the model goes past the autocast that accelerate wraps around its forward.
            with self.accelerator.autocast():
                hidden = predicting_states(body, ids, mask, logits_to_keep)
                ids, mask = ids[:, -logits_to_keep:], mask[:, -logits_to_keep:]
                found.append(token_logps(head, hidden, ids, mask, self.temperature, compute_entropy))
        logps, entropies = (torch.cat(parts) for parts in zip(*found, strict=True))
        return logps, entropies if compute_entropy else None, None

    def _head(self, model: Any) -> Head | None:
        """The model's LM head; None where TRL's way is to be taken."""
        alone = (
            self.accelerator.distributed_type == DistributedType.NO and self.accelerator.unwrap_model(model) is model
        )
        if not alone or self._is_vlm or not plain_head(model.config):
            return None
        head: Any = causal_model(model).get_output_embeddings()
        linear = head.get_base_layer() if isinstance(head, BaseTunerLayer) else head
        return head if isinstance(linear, torch.nn.Linear) and linear.bias is None else None


def causal_model(model: Any) -> Any:
    """The transformers model, without the adapter's wrapper."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def predicting_states(body: Any, ids: torch.Tensor, mask: torch.Tensor, keep: int) -> torch.Tensor:
    """Last hidden states that predict the last `keep` tokens of each row, (B, keep, H); anything where the mask is 0.

    Args:
        body: the transformers model without its LM head.
        ids, mask: (B, T), tokens and 1 where there is one.
    """
    moved = padding_last(ids, mask)
    if moved is None:
        hidden = body(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        return hidden[:, -keep - 1 : -1]
    ids, first = moved
    hidden = body(input_ids=ids, use_cache=False).last_hidden_state
    # The state at one token predicts the next.
    columns = torch.arange(mask.shape[1] - keep - 1, mask.shape[1] - 1, device=ids.device) - first[:, None]
    columns = columns.clamp(0, ids.shape[1] - 1)
    return hidden.gather(1, columns[..., None].expand(-1, -1, hidden.shape[2]))


def padding_last(ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Rows moved to the left until each begins with a token, cut to the longest; None where padding lies between tokens.

    Args:
        ids, mask: (B, T).

    Returns:
        Tokens (B, longest) and how far each row was moved (B).

    Worked example: [0 0 5 6 0] and [7 8 9 0 0] become [5 6 0] and [7 8 9], moved by 2 and 0.
    """
    lengths, first = mask.sum(1), mask.int().argmax(1)
    columns = torch.arange(max(1, int(lengths.max())), device=ids.device)
    at = (columns + first[:, None]).clamp(max=ids.shape[1] - 1)
    if not bool(mask.gather(1, at).bool()[columns < lengths[:, None]].all()):
        return None
    return ids.gather(1, at), first


def token_logps(
    head: Head, hidden: torch.Tensor, ids: torch.Tensor, mask: torch.Tensor, temperature: float, with_entropy: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability and entropy, in nats, of the tokens where the mask is 1; 0 elsewhere.

    Args:
        hidden: states that predict the tokens, (B, T, H).
        ids, mask: the tokens, (B, T).
        with_entropy: otherwise entropies are 0.

    Returns:
        Two float32 tensors, (B, T); no gradient flows through the entropies.
    """
    picked = mask.bool()

    def score(states: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = head(states).float().div_(temperature)
        logps = -torch.nn.functional.cross_entropy(logits, targets, reduction="none")
        # Last: the recomputation for the backward pass ends where nothing more is needed for it.
        with torch.no_grad():
            return logps, entropy_from_logits(logits) if with_entropy else torch.zeros_like(logps)

    found = [
        checkpoint(score, *chunk, use_reentrant=False) if torch.is_grad_enabled() else score(*chunk)
        for chunk in zip(hidden[picked].split(LOGITS_CHUNK), ids[picked].split(LOGITS_CHUNK), strict=True)
    ]
    empty = torch.zeros(mask.shape, dtype=torch.float32, device=hidden.device)
    logps, entropies = (empty.masked_scatter(picked, torch.cat(parts)) for parts in zip(*found, strict=True))
    return logps, entropies
