"""llama.cpp on token ids, against transformers on the same weights."""

import numpy as np
import pytest

from tasks.errors import ModelError
from tasks.export.llama import LlamaFile, _shared_length
from tasks.export.reference import log_probabilities


@pytest.fixture(scope="module")
def llama(exported):
    with LlamaFile(exported.f16, n_ctx=256, parallel=4) as file:
        yield file


def test_token_ids_are_the_tokenizers(exported, llama):
    for text in ["What is 12 + 5?", "<|im_start|>user\nx<|im_end|>\n", "  two  spaces\n\n", "</SOLUTION>", "é∑"]:
        assert llama.tokenize(text) == exported.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert llama.special_ids() == (exported.tokenizer.bos_token_id, exported.tokenizer.eos_token_id)
    assert llama.is_end(exported.tokenizer.eos_token_id) and not llama.is_end(llama.tokenize("x")[0])
    assert llama.chat_template() == exported.tokenizer.chat_template
    assert llama.piece(exported.tokenizer.eos_token_id) == exported.tokenizer.eos_token
    assert llama.piece(-1) == ""


def test_log_probabilities_are_the_models(exported, llama):
    ids = exported.problems[3].prompt + exported.tokenizer("1 + 2 = 3", add_special_tokens=False)["input_ids"]
    start = len(exported.problems[3].prompt)
    (expected,) = log_probabilities(exported.folder, 2_000_000, [ids], [start])
    found = llama.log_probabilities(ids, start)
    assert found.shape == (len(ids) - start,)
    assert np.abs(found - expected).max() < 0.01
    assert np.array_equal(found, llama.log_probabilities(ids, start))


def test_log_probabilities_cross_batches(exported):
    prompt = exported.problems[0].prompt
    ids = (prompt * 20)[:700]
    with LlamaFile(exported.f16, n_ctx=768, parallel=1) as file:  # batches of 512
        found = file.log_probabilities(ids, 505)
    (expected,) = log_probabilities(exported.folder, 2_000_000, [ids], [505])
    assert np.abs(found - expected).max() < 0.01


def test_greedy_is_the_most_probable_token_each_time(exported, llama):
    prompts = [problem.prompt for problem in exported.problems]
    together = llama.complete(prompts, 12)
    assert together == llama.complete(prompts, 12)
    for prompt, completion in zip(prompts, together, strict=True):
        ids = [*prompt, *completion.ids]
        chosen = llama.log_probabilities(ids, len(prompt))
        for step, token in enumerate(completion.ids):
            best = llama.complete([ids[: len(prompt) + step]], 1)[0].ids
            if best != [token]:  # a tie within the rounding of another batch shape
                other = llama.log_probabilities([*ids[: len(prompt) + step], *best], len(prompt) + step)[0]
                assert chosen[step] == pytest.approx(other, abs=1e-3)


def test_order_progress_and_waves(exported, llama):
    prompts = [problem.prompt for problem in exported.problems]  # 6 prompts, 4 at a time
    seen = []
    forward = llama.complete(prompts, 3, seen.append)
    assert seen == [4, 6]
    backward = llama.complete(prompts[::-1], 3)[::-1]
    assert [len(c.ids) for c in forward] == [len(c.ids) for c in backward] == [3] * 6
    assert all(c.truncated for c in forward)
    assert llama.complete([], 3) == []


def test_stops_at_the_end_of_turn(exported, llama, monkeypatch):
    prompts = [problem.prompt for problem in exported.problems[:3]]
    free = llama.complete(prompts, 4)
    stop = free[1].ids[2]
    monkeypatch.setattr(llama, "is_end", lambda token: token == stop)
    stopped = llama.complete(prompts, 4)
    for before, after in zip(free, stopped, strict=True):
        cut = before.ids.index(stop) if stop in before.ids else 4
        assert after.ids == before.ids[:cut]
        assert after.truncated == (cut == 4)


def test_equal_prompts_and_one_inside_the_other(llama):
    ids = llama.tokenize("What is 1 + 1?")
    same = llama.complete([ids, ids, ids[:3]], 2)
    assert same[0] == same[1]
    assert _shared_length([ids, ids, ids[:3]]) == 3
    assert _shared_length([[1, 2, 3], [1, 5, 3]]) == 1


def test_prompts_that_do_not_fit(llama):
    with pytest.raises(ModelError, match=r"prompt 1: a prompt of 250 tokens and 10 new ones exceed n_ctx=256"):
        llama.complete([[5], [5] * 250], 10)
    with pytest.raises(ModelError, match="without tokens"):
        llama.complete([[]], 10)
    with pytest.raises(ValueError, match="start=0"):
        llama.log_probabilities([1, 2], 0)


@pytest.mark.parametrize("keep", [0, 100, 5_000, 20_000, 1_000_000])
def test_a_truncated_file_is_named_corrupt(exported, copy_of, keep):
    file = copy_of(exported.f16)
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ModelError, match=r"cannot load the file: .") as caught:
        LlamaFile(file)
    assert caught.value.cause == "corrupt_file"


def test_nothing_is_printed(exported, capfd):
    with LlamaFile(exported.q4, n_ctx=64, parallel=1) as file:
        file.complete([[5, 6]], 1)
    assert capfd.readouterr() == ("", "")
