"""Answers of a real GGUF file: the prompt of training, the text that greedy decoding gives, and a clean end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tasks.chat.choose import Chosen
from tasks.chat.model import ChatModel
from tasks.contract.prompts import encode_prompt
from tasks.errors import ModelError
from tasks.export.llama import LlamaFile


@pytest.fixture(scope="module")
def model(exported: Any) -> Any:
    made = ChatModel(Chosen(exported.f16, exported.contract, 256, 12), threads=1)
    yield made
    made.close()


def test_the_prompt_is_the_one_of_training(exported: Any, model: ChatModel) -> None:
    for problem in exported.problems:
        assert model.prompt(problem.question) == encode_prompt(exported.tokenizer, exported.contract, problem.question)


def test_the_answer_is_the_greedy_completion(exported: Any, model: ChatModel) -> None:
    problem = exported.problems[0]
    reply = model.answer(problem.question)
    text = "".join(reply)
    assert text == reply.text and text
    with LlamaFile(exported.f16, n_ctx=256, parallel=1, threads=1) as llama:
        (completion,) = llama.complete([problem.prompt], 12)
    assert reply.text == exported.tokenizer.decode(completion.ids, skip_special_tokens=True)
    # A random model does not end its turn in 12 tokens.
    assert reply.truncated == completion.truncated and reply.tokens <= 12 and reply.seconds > 0


def test_earlier_turns_stand_in_the_prompt_with_their_reasoning(exported: Any, model: ChatModel) -> None:
    ids = model.prompt("And 2 + 2?", [("1 + 1?", "\n1 + 1 = 2\n<end_working_out>\n<SOLUTION>2</SOLUTION>")])
    text = exported.tokenizer.decode(ids)
    assert text.count("<|im_start|>") == 5  # system, user, assistant, user, generation prompt
    assert "assistant\n<start_working_out>\n1 + 1 = 2" in text and text.endswith("<start_working_out>")


def test_a_prompt_that_leaves_no_room(model: ChatModel) -> None:
    with pytest.raises(ModelError, match=r"the prompt has \d+ tokens and the context 256") as caught:
        model.answer("9 " * 300)
    assert caught.value.cause == "prompt_too_long"


def test_a_file_that_is_no_gguf(exported: Any, tmp_path: Path) -> None:
    file = tmp_path / "model-f16.gguf"
    file.write_text("no GGUF")
    with pytest.raises(ModelError, match=r"llama\.cpp cannot load the file: .") as caught:
        ChatModel(Chosen(file, exported.contract, 256, 12))
    assert caught.value.cause == "corrupt_file" and str(file) in str(caught.value)
