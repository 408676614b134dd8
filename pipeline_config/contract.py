"""What every stage agrees on: the four tags and the system prompt that explains them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints, model_validator

from pipeline_config.base import Section

Tag = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^\S(.*\S)?$")]

DEFAULT_SYSTEM_PROMPT = (
    "You are given a problem. Think about it and write your working between {reasoning_start} and {reasoning_end}. "
    "Then give the final answer between {answer_start} and {answer_end}."
)


class ContractConfig(Section):
    """The output format: ordinary text tags, never registered as special tokens.

    The generation prompt ends with `reasoning_start`, so a completion begins just after it.
    """

    reasoning_start: Tag = "<start_working_out>"
    """Opens the working; part of the prompt, not of the completion."""
    reasoning_end: Tag = "<end_working_out>"
    """Closes the working."""
    answer_start: Tag = "<SOLUTION>"
    """Opens the final answer."""
    answer_end: Tag = "</SOLUTION>"
    """Closes the final answer."""
    system_prompt: str = Field(DEFAULT_SYSTEM_PROMPT, max_length=8000)
    """System message; `{reasoning_start}` and the other three tag names are filled in. Empty for no system message."""

    @model_validator(mode="after")
    def _distinct(self) -> ContractConfig:
        tags = self.tags
        for i, tag in enumerate(tags):
            for other in tags[i + 1 :]:
                if tag in other or other in tag:
                    raise ValueError(f"the tags {tag!r} and {other!r} contain one another; choose four distinct tags")
        return self

    @property
    def tags(self) -> tuple[str, str, str, str]:
        """reasoning_start, reasoning_end, answer_start, answer_end."""
        return (self.reasoning_start, self.reasoning_end, self.answer_start, self.answer_end)

    def system_message(self) -> str:
        """The system prompt with the tag names filled in; other braces are left alone."""
        text = self.system_prompt
        for name in ("reasoning_start", "reasoning_end", "answer_start", "answer_end"):
            text = text.replace("{" + name + "}", getattr(self, name))
        return text
