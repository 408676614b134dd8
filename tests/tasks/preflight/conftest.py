"""A tiny tokenizer with any fault, a few problems, and rewards of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline_config.contract import ContractConfig
from pipeline_config.rewards import RewardConfig, RewardFunction
from tasks.contract.prompts import completion_text, trained_template
from tasks.rewards.build import Rewards, build_rewards

CONTRACT = ContractConfig()
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
QUESTIONS = ["What is 12 + 5?", "Tom has 30 apples and buys 55 more. How many?", "Compute 9 × 41."]

REWARDS = """
def text(completion):
    return completion[0]["content"]

def answer_of(completion):
    return text(completion).rpartition("<SOLUTION>")[2].partition("</SOLUTION>")[0].strip()

def exact(completions, answer, **_):
    return [1.0 if answer_of(c) == a else 0.0 for c, a in zip(completions, answer)]

def raises(completions, **_):
    raise ValueError("the parser gave up")

def none(completions, **_):
    return None

def short(completions, **_):
    return [1.0]

def nan(completions, **_):
    return [float("nan")] * len(completions)

def constant(completions, **_):
    return [0.5] * len(completions)

def tie(completions, **_):
    return [1.0 if answer_of(c) else 0.0 for c in completions]

def hangs(completions, **_):
    while True:
        pass

def verbose(completions, answer, **_):
    return [float(a in text(c)) + len(text(c)) / 1e6 for c, a in zip(completions, answer)]

def contained(completions, answer, **_):
    return [1.0 if answer_of(c) in a else 0.0 for c, a in zip(completions, answer)]

def opposite(completions, answer, **_):
    return [-value for value in exact(completions, answer)]

def by_id(completions, id, **_):
    return [1.0 for _ in completions]
"""


@pytest.fixture
def contract() -> ContractConfig:
    return CONTRACT


@pytest.fixture
def chatml() -> str:
    return CHATML


@pytest.fixture
def make_tokenizer() -> Callable[..., Any]:
    """`make_tokenizer(template=..., trained=True, added=[], **special tokens)`: a byte-level BPE of 420 pieces."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")

    def make(
        template: str | None = CHATML, trained: bool = True, added: list[str] | None = None, **special: Any
    ) -> Any:
        bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
        bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        bpe.decoder = tokenizers.decoders.ByteLevel()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=420,
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>"],
        )
        texts = [CONTRACT.system_message(), *QUESTIONS, completion_text(CONTRACT, "3 + 5 = 8", "8")]
        bpe.train_from_iterator(texts * 4, trainer)
        tokens = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", **special}
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, **tokens)
        if added:
            tokenizer.add_special_tokens({"additional_special_tokens": added})
        if template is not None:
            tokenizer.chat_template = trained_template(template, CONTRACT) if trained else template
        return tokenizer

    return make


@pytest.fixture
def make_rows() -> Callable[..., list[dict[str, Any]]]:
    """`make_rows("8", "1,234", ...)`: one problem per gold, with a question that does not give it away."""

    def make(*golds: Any, question: str = "What is the result of problem {}?") -> list[dict[str, Any]]:
        return [
            {
                "id": f"p{i}",
                "question": question.format("abcdefghijklmnopqrstuvwxyz"[i % 26] * (1 + i // 26)),
                "answer": gold,
            }
            for i, gold in enumerate(golds)
        ]

    return make


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"preflight_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(REWARDS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


@pytest.fixture
def reward_config(user_module: str) -> Callable[..., RewardConfig]:
    """`reward_config("exact", maximum=1.0)`: functions of the user's module; without names, the default preset."""

    def make(*names: str, preset: str | None = None, timeout_s: float = 20.0, **options: Any) -> RewardConfig:
        functions = tuple(RewardFunction(path=f"{user_module}:{name}", **options) for name in names)
        preset = preset if names or preset else "sound"
        return RewardConfig(preset=preset, functions=functions, timeout_s=timeout_s)  # type: ignore[arg-type]

    return make


@pytest.fixture
def build() -> Iterator[Callable[[RewardConfig], Rewards]]:
    """Rewards of a configuration, closed after the test."""
    built: list[Rewards] = []

    def make(config: RewardConfig) -> Rewards:
        built.append(build_rewards(config, CONTRACT, max_completion_length=100))
        return built[-1]

    yield make
    for rewards in built:
        rewards.close()
