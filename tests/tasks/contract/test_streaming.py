"""Reasoning and answer apart, however the text is cut into pieces."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline_config.contract import ContractConfig
from tasks.contract.streaming import parts

CONTRACT = ContractConfig()
WHOLE = "\n2 + 3 = 5\n<end_working_out>\n<SOLUTION>5</SOLUTION> bye"


def joined(pieces: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for part, text in parts(pieces, CONTRACT):
        assert text
        found[part] = found.get(part, "") + text
    return found


def test_a_whole_completion() -> None:
    assert joined([WHOLE]) == {"reasoning": "\n2 + 3 = 5\n", "between": "\n", "answer": "5", "after": " bye"}


def test_text_is_passed_on_at_once_unless_it_could_be_a_tag() -> None:
    pieces = iter(["think", "ing <", "end_", "of <end_working", "_out>", "<SOL", "UTION>4", "2</SOLUTION>"])
    assert list(parts(pieces, CONTRACT)) == [
        ("reasoning", "think"),
        ("reasoning", "ing "),
        ("reasoning", "<end_of "),
        ("answer", "4"),
        ("answer", "2"),
    ]


def test_without_tags_everything_is_reasoning() -> None:
    assert joined(["no tags <end_work"]) == {"reasoning": "no tags <end_work"}
    assert joined(["a<end_working_out>", "<SOLUTION>4"]) == {"reasoning": "a", "answer": "4"}
    assert joined([]) == {}


@settings(deadline=None)
@given(st.lists(st.sampled_from([*CONTRACT.tags, *"<>a1\n", "<end", "</SOL"]), max_size=12), st.data())
def test_the_cuts_do_not_matter(texts: list[str], data: st.DataObject) -> None:
    whole = "".join(texts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert joined(pieces) == joined([whole])
    before, _, rest = whole.partition(CONTRACT.reasoning_end)
    assert joined([whole]).get("reasoning", "") == before
    _, _, rest = rest.partition(CONTRACT.answer_start)
    assert joined([whole]).get("answer", "") == rest.partition(CONTRACT.answer_end)[0]
