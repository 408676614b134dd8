"""One prompt for SFT, the gate, GRPO, evaluation and export: rendered once here, with equal token ids everywhere.

The tokenizer is passed in; this module imports no transformers.
"""

from __future__ import annotations

from typing import Any

from pipeline_config.contract import ContractConfig
from tasks.errors import ModelError


def messages(contract: ContractConfig, question: str) -> list[dict[str, str]]:
    """System message (if the contract has one) and the question as the user's message."""
    system = contract.system_message()
    turns = [{"role": "system", "content": system}] if system else []
    return [*turns, {"role": "user", "content": question}]


def trained_template(chat_template: str, contract: ContractConfig) -> str:
    """The chat template whose generation prompt ends with `reasoning_start`.

    Idempotent. What the template rendered before stays exactly as it was: Jinja drops one newline at the very end of a
    template, so it is dropped here before something follows it, and an expression (not a block) is added because
    transformers renders with `lstrip_blocks`, which would eat blanks in front of a block.
    """
    quoted = _jinja_string(contract.reasoning_start)
    addition = "{{ " + quoted + " if add_generation_prompt else '' }}"
    for newline in ("\r\n", "\n", "\r"):
        if chat_template.endswith(newline):
            chat_template = chat_template[: -len(newline)]
            break
    block = "{% if add_generation_prompt %}{{ " + quoted + " }}{% endif %}"  # the same, as others may have written it
    return chat_template if chat_template.endswith((addition, block)) else chat_template + addition


def render_prompt(tokenizer: Any, contract: ContractConfig, question: str) -> str:
    """The prompt as text; the tokenizer must already carry the trained template.

    Raises:
        ModelError: the tokenizer has no chat template, or the template refuses the messages.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise ModelError(
            "the tokenizer has no chat template",
            fix="use an instruct model, or set a chat template in the tokenizer's folder",
            cause="no_chat_template",
        )
    try:
        text = tokenizer.apply_chat_template(messages(contract, question), tokenize=False, add_generation_prompt=True)
    except Exception as error:
        raise ModelError(
            f"the chat template cannot render the prompt: {error}",
            fix="templates that refuse a system role need contract.system_prompt to be empty",
            cause="chat_template",
        ) from error
    return str(text)


def encode_prompt(tokenizer: Any, contract: ContractConfig, question: str) -> list[int]:
    """Token ids of the prompt, exactly those that TRL's GRPOTrainer computes for the same messages."""
    return _ids(tokenizer, render_prompt(tokenizer, contract, question))


def completion_text(contract: ContractConfig, working: str, answer: str) -> str:
    """What follows the prompt in a perfect completion, without the end-of-turn token."""
    return f"\n{working}\n{contract.reasoning_end}\n{contract.answer_start}{answer}{contract.answer_end}"


def encode_example(
    tokenizer: Any, contract: ContractConfig, question: str, working: str, answer: str
) -> tuple[list[int], list[int]]:
    """(input_ids, completion_mask) of one SFT example: prompt, completion and end-of-turn token; equal lengths.

    Prompt and completion are encoded apart and joined, so that the prompt's ids are those of a rollout. The mask is 1 on
    the completion and its end-of-turn token.
    """
    prompt = encode_prompt(tokenizer, contract, question)
    completion = [*_ids(tokenizer, completion_text(contract, working, answer)), turn_end_id(tokenizer)]
    return prompt + completion, [0] * len(prompt) + [1] * len(completion)


def turn_end_id(tokenizer: Any) -> int:
    """Id of the token that ends a turn and stops generation.

    Raises:
        ModelError: the tokenizer has no end-of-sequence token.
    """
    eos = getattr(tokenizer, "eos_token_id", None)
    if eos is None:
        raise ModelError(
            "the tokenizer has no end-of-sequence token, so no completion could ever end",
            fix="set eos_token in the tokenizer's folder to the token that ends an assistant turn",
            cause="no_eos",
        )
    return int(eos)


def _ids(tokenizer: Any, text: str) -> list[int]:
    return [int(token) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]


def _jinja_string(text: str) -> str:
    """A Jinja string literal; Jinja decodes Python's unicode-escape inside quotes."""
    return "'" + text.encode("unicode_escape").decode("ascii").replace("'", "\\'") + "'"
