"""Log-probabilities in chunks: by hand, the same training as TRL's, and never more logits than a chunk."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from side_by_side import differences, run

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
CHUNK, VOCABULARY = 16, 448


def test_two_tokens_by_hand() -> None:
    from tasks.grpo.chunked import token_logps

    # Logits log 3 and 0 at temperature 1: probabilities 3/4 and 1/4. At temperature 1/2: 9/10 and 1/10.
    hidden = torch.tensor([[[math.log(3.0), 0.0]] * 3])
    ids, mask = torch.tensor([[0, 1, 0]]), torch.tensor([[1, 1, 0]])
    logps, entropies = token_logps(lambda states: states.clone(), hidden, ids, mask, 1.0, True)
    assert torch.allclose(logps.exp(), torch.tensor([[0.75, 0.25, 1.0]]))
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert torch.allclose(entropies, torch.tensor([[entropy, entropy, 0.0]]))
    logps, entropies = token_logps(lambda states: states.clone(), hidden, ids, mask, 0.5, False)
    assert torch.allclose(logps.exp(), torch.tensor([[0.9, 0.1, 1.0]])) and not entropies.any()


def test_the_gradient_goes_through_the_chunks_and_stays_zero_where_nothing_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tasks.grpo import chunked

    monkeypatch.setattr(chunked, "LOGITS_CHUNK", 3)
    torch.manual_seed(0)
    head = torch.nn.Linear(8, 11, bias=False)
    ids, mask = torch.randint(11, (4, 5)), torch.rand(4, 5) < 0.7
    hidden = torch.randn(4, 5, 8, requires_grad=True)
    wanted = torch.log_softmax(head(hidden) / 0.7, -1).gather(2, ids[..., None])[..., 0] * mask
    expected = torch.autograd.grad(wanted.sum(), [hidden, head.weight])
    logps, entropies = chunked.token_logps(head, hidden, ids, mask, 0.7, True)
    assert torch.allclose(logps, wanted) and not entropies.requires_grad
    for mine, other in zip(torch.autograd.grad(logps.sum(), [hidden, head.weight]), expected, strict=True):
        assert torch.allclose(mine, other, atol=1e-6)
    nothing, _ = chunked.token_logps(head, hidden, ids, torch.zeros_like(mask), 0.7, True)
    assert not any(gradient.any() for gradient in torch.autograd.grad(nothing.sum(), [hidden, head.weight]))


def test_rows_are_moved_so_that_padding_comes_last() -> None:
    from tasks.grpo.chunked import padding_last

    ids = torch.tensor([[0, 0, 5, 6, 0], [7, 8, 9, 0, 0]])
    moved = padding_last(ids, torch.tensor([[0, 0, 1, 1, 0], [1, 1, 1, 0, 0]]))
    assert moved is not None
    assert moved[0][0, :2].tolist() == [5, 6] and moved[0][1].tolist() == [7, 8, 9] and moved[1].tolist() == [2, 0]
    assert padding_last(ids, torch.tensor([[0, 1, 0, 1, 0], [1, 1, 1, 0, 0]])) is None  # a hole


@pytest.mark.parametrize("hole", [False, True])
def test_states_without_a_mask_are_those_with_one(monkeypatch: pytest.MonkeyPatch, hole: bool) -> None:
    from transformers import LlamaConfig, LlamaModel

    from tasks.grpo.chunked import predicting_states

    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    body = LlamaModel(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, attn_implementation="sdpa"))
    ids = torch.randint(64, (3, 9))
    # Prompts of 2, 4 and 3 tokens padded to 4, completions of 5, 2 and no tokens.
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 0, 0, 0], [0, 1, 1, 1, 0, 0, 0, 0, 0]])
    mask[0, 5] -= int(hole)
    seen = []
    attention = torch.nn.functional.scaled_dot_product_attention

    def spied(*args: Any, attn_mask: Any = None, is_causal: bool = False, **more: Any) -> Any:
        seen.append(attn_mask is None and is_causal)
        return attention(*args, attn_mask=attn_mask, is_causal=is_causal, **more)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spied)
    found = predicting_states(body, ids, mask, 5)
    assert seen == [not hole] * 2
    wanted = body(input_ids=ids, attention_mask=mask).last_hidden_state[:, -6:-1]
    assert found.shape == wanted.shape and torch.allclose(
        found[mask[:, -5:] == 1], wanted[mask[:, -5:] == 1], atol=1e-5
    )


WINDOW = {"sliding_window": 4}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {}, "mistral": WINDOW, "olmo2": {}, "olmo3": WINDOW, "phi3": WINDOW,
    "qwen2": {"use_sliding_window": True, "max_window_layers": 1, **WINDOW}, "qwen3": {"head_dim": 8}, "smollm3": {},
}  # fmt: skip


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", MODELS)
def test_states_of_every_model_that_is_done_so(kind: str, attention: str) -> None:
    from transformers import AutoConfig, AutoModel

    from tasks.grpo.arithmetic import PLAIN_HEADS
    from tasks.grpo.chunked import predicting_states

    assert MODELS.keys() == PLAIN_HEADS
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0}
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **sizes, **heads, **MODELS[kind])
    body = AutoModel.from_config(config, attn_implementation=attention)
    ids, mask = torch.randint(64, (4, 14)), torch.zeros(4, 14, dtype=torch.long)
    for row, (prompt, completion) in enumerate(((2, 8), (6, 3), (4, 0), (6, 8))):
        mask[row, 6 - prompt : 6 + completion] = 1
    picked = mask[:, -8:] == 1
    wanted = body(input_ids=ids, attention_mask=mask).last_hidden_state[:, -9:-1]
    found = predicting_states(body, ids, mask, 8)
    assert torch.allclose(found[picked], wanted[picked], atol=1e-5) and not found.isnan().any()


CASES: list[dict[str, Any]] = [
    {"loss_type": "dapo", "gradient_accumulation_steps": 2, "beta": 0.04, "mask_truncated_completions": True},
    {"loss_type": "dr_grpo", "lora": True, "beta": 0.04, "gradient_checkpointing": True},
    {"loss_type": "grpo", "num_iterations": 2, "top_entropy_quantile": 0.5, "evaluate": True},
    {"loss_type": "dapo", "lora": True, "bf16": True},
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(str(value) for value in case.values()))
def test_the_same_training_as_trls(
    random_sft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: dict[str, Any]
) -> None:
    from trl import GRPOTrainer

    from tasks.grpo import chunked
    from tasks.grpo.trainer import LeanTrainer

    monkeypatch.setattr(chunked, "LOGITS_CHUNK", CHUNK)
    ours = run(LeanTrainer, random_sft / "model", tmp_path / "ours", **case)
    theirs = run(GRPOTrainer, random_sft / "model", tmp_path / "trl", **case)
    found = differences(ours, theirs)
    print(found)
    assert max(found.values()) < (0.05 if case.get("bf16") else 1e-5)
    assert ours.largest_logits == CHUNK * VOCABULARY
    assert theirs.largest_logits == 8 * 13 * VOCABULARY  # 8 completions of 12 tokens and one more


def test_only_where_logits_are_a_plain_head(random_sft: Path, tmp_path: Path) -> None:
    from transformers import Gemma2Config, LlamaConfig

    from tasks.grpo.arithmetic import plain_head

    assert plain_head(LlamaConfig()) and not plain_head(Gemma2Config())
    assert not plain_head(SimpleNamespace(model_type="llama", auto_map={"AutoModelForCausalLM": "code.Model"}))


def test_the_entropy_bonus_goes_trls_way(random_sft: Path, tmp_path: Path) -> None:
    from tasks.grpo.trainer import LeanTrainer

    ours = run(LeanTrainer, random_sft / "model", tmp_path / "ours", entropy_coef=0.1)
    assert ours.largest_logits == 8 * 13 * VOCABULARY
