"""The four tables: sizes, disjoint contents, a split that never moves, filters, and errors that say what is left and why."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_config.contract import ContractConfig
from pipeline_config.data import DataConfig
from pipeline_config.sources import ArithmeticSource, Columns, FileSource, SumSource, WordSource
from tasks.dataset.build import Built, build, longest_allowed, quotas
from tasks.dataset.pools import read_pool
from tasks.dataset.problem import Problem, content_digest, normalise, unit_hash
from tasks.dataset.report import ROLES, spread
from tasks.dataset.ruler import Limits, Ruler, gold_check
from tasks.errors import DataError

CONTRACT = ContractConfig()
RULER = Ruler(
    prompt=lambda question: 10 + len(question.split()),
    example=lambda problem: 20 + len(f"{problem.question} {problem.working}".split()),
    check=gold_check(CONTRACT),
)
LIMITS = Limits(context=1000, completion=200, eval_completion=200, sft_length=300)
SMALL = {"sft_rows": 30, "train_rows": 20, "eval_rows": 10, "gate_rows": 5}
PLAIN = SumSource(style="plain", trace="short")


def make(limits: Limits = LIMITS, **settings: Any) -> Built:
    return build(DataConfig(**{**SMALL, **settings}), RULER, limits)


def contents(built: Built) -> dict[str, set[str]]:
    return {role: {digest for digest, _ in built.tables[role]} for role in ROLES}


def questions(built: Built, role: Any) -> list[str]:
    return [problem.question for _, problem in built.tables[role]]


def jsonl(path: Path, rows: list[dict[str, Any]]) -> FileSource:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return FileSource(url=str(path), columns=Columns(working="working"))


def rows(numbers: range, prefix: str = "") -> list[dict[str, Any]]:
    return [{"question": f"{prefix}What is {n} + 1?", "answer": n + 1, "working": f"{n}+1={n + 1}"} for n in numbers]


@pytest.mark.parametrize(
    "sources",
    [
        (SumSource(),),
        (PLAIN,),
        (SumSource(share=3), ArithmeticSource(share=1), WordSource(share=1)),
    ],
)
def test_tables_have_the_sizes_asked_for_and_share_no_content(sources: Any) -> None:
    built = make(train=sources)
    assert built.stats["rows"] == {"eval": 10, "gate": 5, "train": 20, "sft": 30} == built.stats["unique"]
    for one, other in itertools.combinations(contents(built).values(), 2):
        assert not one & other
    assert set(built.stats["overlap"].values()) == {0}
    for table in built.tables.values():
        for digest, problem in table:
            assert digest == content_digest(problem.question)


def test_the_same_again() -> None:
    assert make().tables == make().tables
    assert make().stats == make().stats
    assert make(seed=1).tables != make().tables


def test_held_out_contents_stay_held_out_whatever_seed_and_size() -> None:
    evaluated, trained = set(), set()
    for seed, size in ((0, 10), (1, 20), (2, 80)):
        found = contents(make(train=(PLAIN,), seed=seed, eval_rows=size, train_rows=10 * size, sft_rows=10 * size))
        evaluated |= found["eval"]
        trained |= found["train"] | found["sft"] | found["gate"]
    assert not evaluated & trained


def test_training_settings_do_not_change_the_evaluation() -> None:
    base = make()
    for change in (
        {"train_rows": 40},
        {"sft_rows": 60},
        {"gate_rows": 9},
        {"prompt_quantile": 0.5},
        {"sft": (WordSource(),)},
    ):
        assert make(**change).tables["eval"] == base.tables["eval"], change


def test_shares_of_several_sources() -> None:
    built = make(train=(SumSource(share=3), ArithmeticSource(share=1)))
    kinds = [problem.kind for _, problem in built.tables["train"]]
    assert (kinds.count("generated/sum"), kinds.count("generated/arithmetic")) == (15, 5)
    assert kinds != sorted(kinds), "sources are mixed, not one after the other"


@pytest.mark.parametrize(
    ("total", "shares", "expected"),
    [
        (10, [1, 1, 1], [4, 3, 3]),
        (20, [3, 1], [15, 5]),
        (1, [1, 1], [1, 0]),
        (7, [0.5], [7]),
        ("all", [1, 2], [None, None]),
    ],
)
def test_quotas(total: Any, shares: list[float], expected: list[int | None]) -> None:
    assert quotas(total, shares) == expected


@given(st.integers(1, 10**6), st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=20))
def test_quotas_add_up(total: int, shares: list[float]) -> None:
    counts = quotas(total, shares)
    assert sum(count or 0 for count in counts) == total
    for count, share in zip(counts, shares, strict=True):
        assert abs((count or 0) - total * share / sum(shares)) < 1.001


def test_longest_allowed() -> None:
    assert longest_allowed([5, 1, 4, 2, 3], 1.0) == 5
    assert longest_allowed([5, 1, 4, 2, 3], 0.6) == 3
    assert longest_allowed([5, 1, 4, 2, 3], 0.61) == 4
    assert longest_allowed([7], 0.01) == 7


def test_spread() -> None:
    assert spread(range(1, 11)) == {"min": 1, "median": 5, "p90": 9, "max": 10}
    assert spread([]) == {}


# Files.


def test_one_file_feeds_evaluation_and_training(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "a.jsonl", rows(range(300)))
    built = make(train=(source,), eval_rows="all", train_rows=50, sft_rows="all", holdout_share=0.2)
    assert sum(built.stats["rows"].values()) == 300
    assert 35 <= built.stats["rows"]["eval"] <= 85
    grown = jsonl(tmp_path / "b.jsonl", rows(range(600)))
    later = make(train=(grown,), eval_rows="all", train_rows=50, sft_rows="all", holdout_share=0.2)
    assert contents(built)["eval"] < contents(later)["eval"], "a row never changes sides when the file grows"


def test_the_order_of_rows_in_a_file_does_not_matter(tmp_path: Path) -> None:
    one = make(train=(jsonl(tmp_path / "a.jsonl", rows(range(300))),))
    other = make(train=(jsonl(tmp_path / "b.jsonl", rows(range(299, -1, -1))),))
    assert {role: questions(one, role) for role in ROLES} == {role: questions(other, role) for role in ROLES}


def test_overlap_of_two_files_is_taken_from_training(tmp_path: Path) -> None:
    train = jsonl(tmp_path / "train.jsonl", rows(range(100)))
    held_out = jsonl(tmp_path / "eval.jsonl", rows(range(90, 130), prefix="  "))
    built = make(train=(train,), eval=(held_out,), eval_rows=5, train_rows="all", sft_may_repeat_train=True)
    assert built.stats["rows"]["train"] == 85
    assert set(questions(built, "train")).isdisjoint({f"What is {n} + 1?" for n in range(90, 100)})
    report = next(r for r in built.stats["sources"] if r["table"] == "train")
    assert report["dropped"] == {"in_eval": 10, "in_gate": 5}


def test_repeated_questions(tmp_path: Path) -> None:
    source = jsonl(
        tmp_path / "a.jsonl", [*rows(range(200)), *rows(range(60), prefix="WHAT IS THIS: "), *rows(range(50))]
    )
    built = make(train=(source,), train_rows="all", sft_may_repeat_train=True)
    assert built.stats["dropped"]["duplicate"] == 50
    assert len(questions(built, "train")) == len(set(questions(built, "train")))


def test_repeats_are_kept_on_request_but_not_across_tables(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "a.jsonl", rows(range(200)) * 3)
    built = make(train=(source,), train_rows="all", sft_may_repeat_train=True, deduplicate=False)
    assert built.stats["rows"]["train"] == 3 * built.stats["unique"]["train"]
    assert built.stats["rows"]["eval"] == built.stats["unique"]["eval"] == 10
    assert not contents(built)["train"] & (contents(built)["eval"] | contents(built)["gate"])
    generated = make(train=(SumSource(max_operand=9, style="plain"),), deduplicate=False, eval_rows=5, sft_rows=500)
    assert generated.stats["rows"]["sft"] == 500
    assert generated.stats["unique"]["sft"] < 100


def test_one_question_with_two_golds_is_dropped_in_every_copy(tmp_path: Path) -> None:
    twice = [{"question": "What is 7 + 7?", "answer": answer, "working": "w"} for answer in ("14", "15")]
    same = [{"question": "What is 8 + 8?", "answer": answer, "working": "w"} for answer in ("16", "16.0")]
    source = jsonl(tmp_path / "a.jsonl", [*rows(range(100)), *twice, *same])
    built = make(train=(source,), train_rows="all", sft_may_repeat_train=True, eval=(SumSource(),))
    assert built.stats["dropped"]["conflicting_gold"] == 1
    assert "What is 7 + 7?" not in questions(built, "train")
    assert built.stats["dropped"]["duplicate"] == 2


def test_sft_may_repeat_train() -> None:
    small = SumSource(max_operand=9, style="plain")
    built = make(train=(small,), eval_rows=5, train_rows=80, sft_rows=80, sft_may_repeat_train=True)
    assert built.stats["overlap"]["train/sft"] > 70
    assert not contents(built)["sft"] & (contents(built)["eval"] | contents(built)["gate"])


# Lengths.


def test_quantile_of_prompt_lengths(tmp_path: Path) -> None:
    """Prompts of 11 to 110 tokens; the 0.8-quantile of the n left after the gate drops the longest fifth of them."""
    source = jsonl(
        tmp_path / "a.jsonl", [{"question": " ".join(["x"] * n), "answer": n, "working": "w"} for n in range(1, 101)]
    )
    built = make(train=(source,), eval=(SumSource(),), train_rows="all", prompt_quantile=0.8, sft_may_repeat_train=True)
    longest = max(len(q.split()) for q in questions(built, "train"))
    assert longest in range(78, 83)
    assert built.stats["rows"]["train"] == longest - 5
    assert built.stats["prompt_tokens"]["train"]["max"] == 10 + longest
    assert max(len(q.split()) for q in questions(built, "gate")) <= 80
    assert max(len(q.split()) for q in questions(built, "sft")) > 85, "the quantile concerns GRPO prompts only"


def test_quantile_of_generated_prompts() -> None:
    built = make(train=(WordSource(max_steps=3),), prompt_quantile=0.5, train_rows=200)
    assert built.stats["rows"]["train"] == 200
    assert built.stats["prompt_tokens"]["train"]["max"] < built.stats["prompt_tokens"]["sft"]["max"]


def test_longest_prompt_allowed() -> None:
    built = make(train=(WordSource(max_steps=3),), max_prompt_tokens=35)
    assert max(built.stats["prompt_tokens"][role]["max"] for role in ROLES) <= 35
    assert built.stats["dropped"]["over_max_prompt_tokens"] > 0


def test_a_prompt_longer_than_the_context_is_named(tmp_path: Path) -> None:
    long = {"question": "y " * 795, "answer": 1, "working": "w"}
    source = jsonl(tmp_path / "a.jsonl", [*rows(range(100)), long])
    with pytest.raises(DataError) as error:
        make(train=(source,), eval=(SumSource(),), train_rows="all", sft_may_repeat_train=True)
    assert error.value.where == f"{tmp_path / 'a.jsonl'}, row 101"
    assert "the prompt has 805 tokens; with a completion of up to 200" in error.value.message
    assert "context of 1000" in error.value.message
    assert "data.on_long_prompt=drop" in error.value.fix
    built = make(
        train=(source,), eval=(SumSource(),), train_rows="all", sft_may_repeat_train=True, on_long_prompt="drop"
    )
    assert built.stats["rows"]["train"] == 95
    assert built.stats["dropped"]["over_context"] >= 1


def test_a_longer_completion_of_the_evaluation_counts() -> None:
    with pytest.raises(DataError, match="completion of up to 990"):
        make(Limits(context=1000, completion=200, eval_completion=990, sft_length=300))


def test_sft_rows_that_do_not_fit_are_dropped_and_counted(tmp_path: Path) -> None:
    """Of working lengths 1 to 100 (and 2 words of question, 20 around it), 300 - 22 words would fit; 60 - 22 = 38 do."""
    table = [{"question": f"question {n}", "answer": n, "working": " ".join(["w"] * n)} for n in range(1, 101)]
    source = jsonl(tmp_path / "a.jsonl", table)
    limits = Limits(context=1000, completion=200, eval_completion=200, sft_length=60)
    built = make(limits, sft=(source,), sft_rows="all")
    assert built.stats["rows"]["sft"] == 38
    assert built.stats["dropped"]["over_sft_length"] == 62
    assert built.stats["sft_tokens"]["max"] == 60
    with pytest.raises(DataError) as error:
        make(limits, sft=(source,), sft_rows=50)
    assert error.value.message == (
        "sft needs 50 rows, but of 100 only 38 are left: 62 are longer than sft.max_length with closing tag and EOS"
    )
    assert error.value.where == f"data.sft[0] ({tmp_path / 'a.jsonl'})"
    assert error.value.fix == (
        "lower data.sft_rows (`all` takes what there is), "
        "or raise sft.max_length (the longest has 122 tokens) or use shorter traces"
    )


# Golds and workings.


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "q", "answer": "#### 42", "working": "w"}, "the gold '#### 42' does not grade as right: "),
        ({"question": "q", "answer": "n/a", "working": "w"}, "the gold 'n/a' does not grade as right: bad_gold"),
        (
            {"question": "q", "answer": "5", "working": "it is <SOLUTION>5</SOLUTION>"},
            "the gold '5' does not grade as right: the worked solution breaks the format",
        ),
        ({"question": "q", "answer": "5", "working": ""}, "there is no worked solution to learn from"),
    ],
)
def test_rows_that_cannot_be_learnt_from(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    source = jsonl(tmp_path / "a.jsonl", [*rows(range(50)), row])
    with pytest.raises(DataError) as error:
        make(sft=(source,), sft_rows="all")
    assert message in error.value.message
    assert error.value.where == f"{tmp_path / 'a.jsonl'}, row 51"
    assert "on_bad_row: drop" in error.value.fix
    dropping = source.model_copy(update={"on_bad_row": "drop"})
    built = make(sft=(dropping,), sft_rows="all")
    assert built.stats["rows"]["sft"] == 50
    assert {"gold_self_check", "no_working"} & set(built.stats["dropped"])


def test_a_tag_that_occurs_in_generated_traces_is_refused() -> None:
    ruler = Ruler(RULER.prompt, RULER.example, gold_check(ContractConfig(answer_start="The sum is")))
    with pytest.raises(DataError, match="does not grade as right") as error:
        build(DataConfig(**SMALL), ruler, LIMITS)
    assert "generated/sum" in error.value.where
    assert "tags" in error.value.fix


def test_golds_that_stand_in_the_question_are_counted(tmp_path: Path) -> None:
    table = [{"question": f"Is it {n}?", "answer": n, "working": "w"} for n in range(10)]
    built = make(sft=(jsonl(tmp_path / "a.jsonl", [*table, *rows(range(10, 20))]),), sft_rows="all")
    assert built.stats["gold_in_question"]["sft"] == 10


# Too few rows.


def test_a_small_space_of_problems_runs_dry() -> None:
    """One-digit sums: 100 contents, about a tenth of them held out."""
    with pytest.raises(DataError) as error:
        make(train=(SumSource(max_operand=9, style="plain"),), train_rows=200)
    assert error.value.where == "data.train[0] (generated/sum)"
    assert error.value.message.startswith("train needs 200 rows, but of ") or "eval needs" in error.value.message
    assert "repeat another question" in error.value.message
    assert "widen the level" in error.value.fix


def test_a_small_space_is_used_to_its_end() -> None:
    source = SumSource(max_operand=9, style="plain")
    digests = [content_digest(f"What is {a} + {b}?") for a, b in itertools.product(range(10), repeat=2)]
    for_training = sum(unit_hash("split", digest) >= 0.1 for digest in digests)
    sizes = {"train": (source,), "eval_rows": 5, "gate_rows": 1, "train_rows": 40}
    assert make(**sizes, sft_rows=for_training - 41).stats["unique"]["sft"] == for_training - 41
    with pytest.raises(
        DataError, match=f"sft needs {for_training - 40} rows, but of .* only {for_training - 41} are left"
    ):
        make(**sizes, sft_rows=for_training - 40)


def test_when_nothing_fits_it_is_said_soon() -> None:
    with pytest.raises(DataError) as error:
        make(max_prompt_tokens=3)
    assert "only 0 are left" in error.value.message
    assert "raise data.max_prompt_tokens" in error.value.fix


def test_too_few_rows_in_a_file(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "a.jsonl", rows(range(100)))
    with pytest.raises(DataError) as error:
        make(train=(source,), train_rows="all", sft_rows=10, eval_rows=5)
    assert error.value.message.startswith("sft needs 10 rows, but of 100 only 0 are left: ")
    assert "are GRPO problems (data.sft_may_repeat_train)" in error.value.message
    assert "set data.sft_may_repeat_train" in error.value.fix
    with pytest.raises(DataError, match=r"eval needs 10 rows, but of 12 only \d are left"):
        make(train=(jsonl(tmp_path / "b.jsonl", rows(range(12))),))


def test_every_count_is_explained() -> None:
    """Rows read = rows kept + rows dropped, for every source and table."""
    built = make(train=(WordSource(max_steps=3),), max_prompt_tokens=38)
    for report in built.stats["sources"]:
        assert report["read"] == sum(report["dropped"].values()) + report["kept"], report


def test_progress_is_reported() -> None:
    seen: list[tuple[int, int]] = []
    build(DataConfig(**SMALL), RULER, LIMITS, lambda done, total: seen.append((done, total)))
    assert seen[-1] == (65, 66)
    assert all(done < total for done, total in seen)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_stats_are_plain_json() -> None:
    stats = make().stats
    assert json.loads(json.dumps(stats)) == stats


def test_problems_are_not_changed(tmp_path: Path) -> None:
    row = {"question": "  What IS ２ + 3? ", "answer": "5", "working": "w"}
    built = make(sft=(jsonl(tmp_path / "a.jsonl", [row]),), sft_rows="all")
    ((digest, problem),) = built.tables["sft"]
    assert problem == Problem("What IS ２ + 3?", "5", "w", "file/a.jsonl", "", "row 1")
    assert normalise(problem.question) == "what is 2 + 3"
    assert digest == content_digest("what is 2+3")


def test_problems_that_differ_in_brackets_only_are_not_one(tmp_path: Path) -> None:
    golds = {"(2+3)*4": 20, "2+(3*4)": 14, "2+3*4": 14, "f'(2)": 1, "f(2)": 5, "10²": 100, "102": 102}
    source = jsonl(tmp_path / "a.jsonl", [{"question": q, "answer": g, "working": "w"} for q, g in golds.items()])
    pool = read_pool(source)
    assert [problem.question for _, problem in pool.entries] == list(golds)
    assert pool.counts == {"read": 7}
