"""From profiles, files and --set texts to one configuration: what wins, what is refused, and what the message says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pipeline_config.loading import (
    load_config,
    merge,
    parse_override,
    parse_yaml,
    profiles,
    read_config_file,
    read_profile,
    validate,
)
from pipeline_config.pipeline import PipelineConfig, legal_batches
from pipeline_config.training import GRPOSettings, LoraSettings
from tasks.errors import ConfigError

CONTEXT = load_config("tiny").model.max_context


def refused(*overrides: str, **sections: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config("tiny", overrides=overrides, sections=sections)
    return str(caught.value)


def test_every_profile_loads_and_says_what_it_is_for() -> None:
    found = profiles()
    assert all(text.endswith(".") for text in found.values()), "what `config profiles` prints is whole sentences"
    assert {"tiny", "smollm2-135m"} <= found.keys()
    for name, text in found.items():
        assert load_config(name).model_dump() and len(text) > 20


def test_defaults_alone_are_valid() -> None:
    assert load_config() == PipelineConfig()


def test_an_unknown_profile_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"no profile 'tinny'(?s:.*)did you mean tiny\?"):
        load_config("tinny")
    with pytest.raises(ConfigError, match=r"no profile '\.\./tiny'"):
        load_config("../tiny")


# -- unknown keys -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("grpoo={}", "grpoo: there is no such key; did you mean grpo?"),
        ("grpo.learning_rat=1", "grpo.learning_rat: there is no such key; did you mean grpo.learning_rate?"),
        ("grpo.lora.alfa=1", "grpo.lora.alfa: there is no such key; did you mean grpo.lora.alpha?"),
        (
            "grpo.rewards.functions=[{path: 'a:b', wait: 2}]",
            "grpo.rewards.functions[0].wait: there is no such key; did you mean grpo.rewards.functions[0].weight?",
        ),
        (
            "data.train=[{kind: generated, problem: sum}, {kind: generated, problem: sum, max_operandd: 9}]",
            "data.train[1].max_operandd: there is no such key; did you mean data.train[1].max_operand?",
        ),
        (
            "data.train=[{kind: file, url: a, columns: {questoin: q, working: w}}]",
            "data.train[0].columns.questoin: there is no such key; did you mean data.train[0].columns.question?",
        ),
        ("run={lora.r: 8}", "run.lora.r: there is no such key; known here: "),
        ("grpo={lora.r: 8}", "grpo.lora.r: there is no such key; nest it: lora: {r: 8}, or --set grpo.lora.r=8"),
        ("run.zzz=1", "run.zzz: there is no such key; known here: backend, device, "),
    ],
)
def test_a_misspelt_key_is_named_at_any_depth(override: str, line: str) -> None:
    text = refused(override)
    assert line in text
    assert "a setting is not valid" in text


def test_a_dotted_key_at_the_top_is_told_how_to_nest() -> None:
    line = "grpo.beta: there is no such key; nest it: grpo: {beta: 0.1}, or --set grpo.beta=0.1"
    assert line in refused(**{"grpo.beta": 0.1})
    assert "nest it: model: {source: https://***@host}" in refused(**{"model.source": "https://CANARY@host"})
    assert "nest it: data: {train: ...}" in refused(**{"data.train": [{"kind": "file"}]})


def test_a_suggestion_comes_from_the_same_kind_of_source() -> None:
    # `max_operand` is a key of the sums, and `max_kinds` the nearest one that counting legs has.
    text = refused("data.train=[{kind: generated, problem: legs, max_kindss: 2}]")
    assert "did you mean data.train[0].max_kinds?" in text
    assert "max_operand" not in refused("data.train=[{kind: generated, problem: legs, max_operand: 3}]").split(";")[1]


def test_all_faults_are_listed_at_once() -> None:
    text = refused("grpo.beta=-1", "sft.lernrate=1", "gate.prompts=2")
    assert "3 settings are not valid" in text
    assert "grpo.beta: Input should be greater than or equal to 0 (got -1)" in text
    assert "sft.lernrate" in text and "gate.prompts" in text


# -- values -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("grpo.learning_rate=2", "grpo.learning_rate: Input should be less than or equal to 1 (got 2)"),
        ("grpo.learning_rate=.nan", "grpo.learning_rate: Input should be a finite number"),
        ("grpo.num_generations=1", "grpo.num_generations: Input should be greater than or equal to 2 (got 1)"),
        ("sft.max_length=many", "sft.max_length: Input should be a valid integer"),
        ("data.sft_rows=0", "data.sft_rows: Input should be greater than or equal to 1 (got 0), or: "),
        ("run.device=tpu", "run.device: Input should be 'auto', 'cpu' or 'cuda' (got 'tpu')"),
        (
            "sft.lora.target_modules=[1]",
            "a setting is not valid:\n    sft.lora.target_modules[0]: should be text, and YAML reads it as a "
            "number: put it in quotes (got 1)",
        ),
        ("sft=", "sft: is a section: give it keys, or leave it out"),
        ("data.train=[x]", "data.train[0]: is a section: give it keys (got 'x')"),
        ("data.train={kind: file}", "data.train: should be a list of sources, each with its kind: [{kind: file, url: "),
        ("data.train=[{url: a}]", "data.train[0].kind: is missing; give one of generated, file, hub"),
        (
            "data.train=[{kind: generated}]",
            "data.train[0].problem: is missing; give one of sum, arithmetic, word, legs",
        ),
        (
            "evaluation.sets=[{name: a, source: {}}]",
            "evaluation.sets[0].source.kind: is missing; give one of generated,",
        ),
        ("sft.lora.target_modules=a", "sft.lora.target_modules: should be a list: [one, another] (got 'a')"),
        ("contract.system_prompt=a: b", "should be text, and YAML reads it as a section: put it in quotes"),
        ("contract.system_prompt=[a]", "should be text, and YAML reads it as a list: put it in quotes (got ['a'])"),
        ("model.revision=1.10", "model.revision: should be text, and YAML reads it as a number: put it in quotes"),
        ("grpo.max_steps=1:30", "write decimal digits, such as 90 (got '1:30')"),
        ("grpo.max_steps=0x1F", "write decimal digits, such as 90 (got '0x1F')"),
        ("grpo.beta=0:0.5", "write decimal digits, such as 90 (got '0:0.5')"),
        ("seed=-1", "seed: Input should be greater than or equal to 0"),
        ("data.train=[]", "data: train needs at least one source"),
        ("contract.answer_end=<SOLUTION>", "contract: the tags '<SOLUTION>' and '<SOLUTION>' contain one another"),
        ("grpo={epsilon: 0.2, epsilon_high: 0.1}", "grpo.epsilon_high = 0.1 is below grpo.epsilon = 0.2"),
        (f"grpo.max_completion_length={CONTEXT}", f"leaves no room for a prompt in model.max_context = {CONTEXT}"),
        (f"evaluation.max_new_tokens={CONTEXT}", f"evaluation.max_new_tokens = {CONTEXT} leaves no room for a prompt"),
        (f"sft.max_length={CONTEXT + 1}", f"sft.max_length = {CONTEXT + 1} is above model.max_context = {CONTEXT}"),
        ("model.load_in_4bit=true", "set sft.method and grpo.method to lora"),
    ],
)
def test_values_that_cannot_work(override: str, part: str) -> None:
    assert part in refused(override)


def test_dropout_is_refused_only_where_it_is_used() -> None:
    assert "grpo.lora.dropout must be 0" in refused("grpo.method=lora", "grpo.lora.dropout=0.1")
    assert load_config("tiny", overrides=["grpo.lora.dropout=0.1"]).grpo.lora.dropout == 0.1


def test_the_input_is_shown_short() -> None:
    assert len(refused(f"model.source={'x' * 5000}")) < 400


# -- batch and group size -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "s3://key:CANARY@bucket/rows.jsonl",
        "https://CANARY@host/rows.jsonl",
        "https://host/rows.jsonl?X-Amz-Signature=CANARY",
        "simplecache::https://host/rows.jsonl?a=1&access_token=CANARY#x",
        "abfs://box/rows.jsonl?sig=CANARY",
    ],
)
def test_a_secret_in_a_url_is_refused_and_not_shown(url: str) -> None:
    source = {"kind": "file", "url": url}
    for text in (refused(data={"train": [source]}), refused(run={"store": url})):
        assert "holds a password, key or signature" in text and "CANARY" not in text


@pytest.mark.parametrize(
    "url",
    ["rows@v1:2.jsonl", "s3://bucket/a@b.jsonl", "sftp://user@host/rows.jsonl", "https://host/rows?download=true"],
)
def test_a_url_without_a_secret_is_taken(url: str) -> None:
    assert load_config("tiny", overrides=[f"run.store='{url}'"]).run.store == url


PLACES = ("run.home", "run.store", "model.source", "model.chat_template")


def placed(key: str, path: str) -> dict[str, Any]:
    """The section that gives a path to one of the keys that take one."""
    section, _, name = key.partition(".")
    if section == "data":
        kind = "file" if name == "url" else "hub"
        return {"data": {"train": [{"kind": kind, name: path, "columns": {"working": "w"}}]}}
    return {section: {name: path}}


@pytest.mark.parametrize("key", [*PLACES, "data.url", "data.dataset"])
def test_a_path_may_begin_at_home_and_holds_no_nul(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    section, _, name = key.partition(".")
    found = getattr(load_config("tiny", sections=placed(key, "~/runs")), section)
    assert getattr(found.train[0] if section == "data" else found, name) == "/home/ann/runs"
    assert "holds a NUL byte" in refused(**placed(key, "a\0b"))
    assert "begins with ~, and that home folder is not known" in refused(**placed(key, "~nobody-of-that-name/a"))


def test_a_batch_of_broken_groups_names_the_nearest_legal_sizes() -> None:
    # 10 x 1 in groups of 8: multiples of 8 around 10 are 8 and 16; 10 x 4 = 40 = 5 x 8; divisors of 10 near 8: 10, 5.
    text = refused(
        "grpo.per_device_train_batch_size=10", "grpo.gradient_accumulation_steps=1", "grpo.num_generations=8"
    )
    assert "10 x 1 = 10 completions per step is not a multiple of grpo.num_generations = 8" in text
    assert "nearest legal per_device_train_batch_size: 8 or 16" in text
    assert "gradient_accumulation_steps: 4" in text
    assert "num_generations: 5 or 10" in text


@pytest.mark.parametrize(
    ("batch", "steps", "group", "expected"),
    [
        # 6 x 2 = 12 in groups of 8: 8 / gcd(8, 2) = 4 divides the batch: 4 or 8; 8 / gcd(8, 6) = 4: only 4 steps
        # (0 is none); divisors of 12 around 8: 6 (2 off), then 12 and 4 (4 off), the smaller one first.
        (
            6,
            2,
            8,
            "nearest legal per_device_train_batch_size: 4 or 8; gradient_accumulation_steps: 4; num_generations: 4 or 6",
        ),
        # 1 x 1 in groups of 2: no divisor of 1 is a group.
        (1, 1, 2, "nearest legal per_device_train_batch_size: 2; gradient_accumulation_steps: 2"),
        # The largest sizes that the settings allow are not exceeded, and the answer does not take minutes.
        (65_535, 65_535, 1024, "nearest legal per_device_train_batch_size: 64512 or 65536; "),
    ],
)
def test_nearest_sizes(batch: int, steps: int, group: int, expected: str) -> None:
    assert legal_batches(batch, steps, group).startswith(expected)


@given(st.integers(1, 4096), st.integers(1, 64), st.integers(2, 64))
def test_every_size_that_is_named_is_legal(batch: int, steps: int, group: int) -> None:
    if batch * steps % group == 0:
        return
    for part in legal_batches(batch, steps, group).removeprefix("nearest legal ").split("; "):
        name, _, values = part.partition(": ")
        for value in map(int, values.split(" or ")):
            sizes = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": steps}
            sizes |= {"num_generations": group, name: value}
            GRPOSettings(**sizes)  # within the bounds of each
            assert (
                sizes["per_device_train_batch_size"] * sizes["gradient_accumulation_steps"] % sizes["num_generations"]
                == 0
            )


# -- files --------------------------------------------------------------------------------------------------------


def written(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "my.yaml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("a: [1, 2", "not valid YAML"),
        ("a: &x [1]\nb: *x\n", "aliases (*x) are not allowed, line 2"),
        ("- 1\n- 2\n", "holds a list, not a mapping of sections"),
        ("just words", "holds a str, not a mapping"),
        (b"sft: {method: \xff}", "is not UTF-8 (byte 14)"),
        (b"\x00", "not valid YAML"),
        ("a: " + "[" * 3000, "not valid YAML"),
        ("a: " + "9" * 5000, "not valid YAML"),
        ("a: !!python/object/apply:os.system [ls]", "not valid YAML"),
        ("grpo: {beta: 0.1}\nsft: {}\ngrpo: {epsilon: 0.3}\n", "the key 'grpo' is given twice, line 3"),
        ("x" * (2 << 20), "is larger than 1 MiB"),
    ],
)
def test_files_that_cannot_be_read_as_a_configuration(tmp_path: Path, content: str | bytes, part: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(ConfigError) as caught:
        read_config_file(path)
    assert str(path) in str(caught.value) and part in str(caught.value)


def test_a_yaml_bomb_costs_nothing(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    with pytest.raises(ConfigError, match="aliases"):
        read_config_file(written(tmp_path, "\n".join(lines)))


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_config_file(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="Is a directory"):
        read_config_file(tmp_path)
    with pytest.raises(ConfigError, match="null byte"):
        read_config_file("a\0b")


def test_a_file_below_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    written(tmp_path, "seed: 5")
    assert read_config_file("~/my.yaml") == {"seed": 5}


def test_an_empty_file_changes_nothing_and_json_is_yaml(tmp_path: Path) -> None:
    assert read_config_file(written(tmp_path, "# only a comment\n")) == {}
    assert read_config_file(written(tmp_path, '{"grpo": {"beta": 0.5}}')) == {"grpo": {"beta": 0.5}}


def test_a_dumped_configuration_loads_to_itself(tmp_path: Path) -> None:
    for name in profiles():
        config = load_config(name)
        text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
        assert load_config(files=[written(tmp_path, text)]) == config


# -- --set --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("grpo.beta=0.02", ["grpo", "beta"], 0.02),
        ("seed=7", ["seed"], 7),
        (" grpo.beta = 0.02", ["grpo", "beta"], 0.02),
        ("sft.gradient_checkpointing=true", ["sft", "gradient_checkpointing"], True),
        ("run.threads=null", ["run", "threads"], None),
        ("run.store=", ["run", "store"], None),
        ("run.store=a=b", ["run", "store"], "a=b"),
        ("vllm.enabled=off", ["vllm", "enabled"], "off"),
        ("run.tracking=no", ["run", "tracking"], "no"),
        ("model.revision=2024-01-01", ["model", "revision"], "2024-01-01"),
        ("model.revision=7e12345", ["model", "revision"], "7e12345"),
        ("grpo.max_steps=010", ["grpo", "max_steps"], "010"),
        ("data.window=007", ["data", "window"], "007"),
        ("run.threads=1:30", ["run", "threads"], "1:30"),
        ("run.threads=0x1F", ["run", "threads"], "0x1F"),
        ("run.threads=0o17", ["run", "threads"], "0o17"),
        ("run.threads=1_000", ["run", "threads"], "1_000"),
        ("grpo.beta=1:30.5", ["grpo", "beta"], "1:30.5"),
        ("run.threads=!!int 010", ["run", "threads"], 10),
        ("run.threads=[0, -5, +7]", ["run", "threads"], [0, -5, 7]),
        ("grpo.beta=[0.5, .5, 1., -1.5e-3]", ["grpo", "beta"], [0.5, 0.5, 1.0, -1.5e-3]),
        ("contract.system_prompt=true story", ["contract", "system_prompt"], "true story"),
        ("contract.system_prompt==", ["contract", "system_prompt"], "="),
        ("model.source='12'", ["model", "source"], "12"),
        (
            "sft.lora.target_modules=[q_proj, [a, {b: 1}]]",
            ["sft", "lora", "target_modules"],
            ["q_proj", ["a", {"b": 1}]],
        ),
    ],
)
def test_overrides_read_their_value_as_yaml(text: str, path: list[str], value: Any) -> None:
    assert parse_override(text) == (path, value)


@pytest.mark.parametrize("text", ["", "grpo", "=1", "a..b=1", ".a=1", "a b=1", "data.train.0.share=1", "a-b=1"])
def test_overrides_of_another_form(text: str) -> None:
    with pytest.raises(ConfigError, match="not of the form"):
        parse_override(text)


@pytest.mark.parametrize(
    "value",
    ["[1, 2", "*x", "{a: 1, a: 2}", "[" * 3000, "@x", "9" * 5000, "!!bool x", "!!int x", "!!timestamp x", "a\x00b"],
)
def test_overrides_whose_value_is_not_yaml(value: str) -> None:
    with pytest.raises(ConfigError, match=r"the value of grpo\.beta is not valid YAML"):
        parse_override(f"grpo.beta={value}")


@given(st.text(max_size=60))
def test_any_override_parses_or_is_refused(text: str) -> None:
    try:
        path, _ = parse_override(text)
    except ConfigError:
        return
    assert path and all(path)


def test_numbers_and_switches_as_people_write_them() -> None:
    config = load_config(
        "tiny",
        overrides=[
            "grpo.learning_rate=1e-5",
            "grpo.min_p=1e-2",
            "grpo.max_steps=1_000",
            "sft.gradient_checkpointing=on",
            "data.deduplicate=no",
            "vllm.enabled=on",
            "run.tracking=off",
            "grpo.watchdog=off",
        ],
    )
    assert (config.grpo.learning_rate, config.grpo.min_p, config.grpo.max_steps) == (1e-5, 0.01, 1000)
    assert (config.sft.gradient_checkpointing, config.data.deduplicate) == (True, False)
    assert load_config("tiny", overrides=["grpo.max_steps=010"]).grpo.max_steps == 10
    assert load_config("tiny", overrides=["data.window=007"]).data.window == "007"
    assert (config.vllm.enabled, config.run.tracking, config.grpo.watchdog) == ("on", "off", "off")


def test_a_nested_list_replaces_the_profiles() -> None:
    config = load_config("tiny", overrides=["data.train=[{kind: generated, problem: legs, max_kinds: 1, share: 2}]"])
    (source,) = config.data.train
    assert source.model_dump()["max_kinds"] == 1 and source.share == 2


# -- precedence ---------------------------------------------------------------------------------------------------


def test_the_later_layer_wins_key_by_key(tmp_path: Path) -> None:
    """defaults < profile < files in order < sections < overrides; keys that a layer does not give stay."""
    first, second = tmp_path / "1.yaml", tmp_path / "2.yaml"
    first.write_text("grpo: {beta: 0.1, epsilon: 0.11, max_steps: 11, temperature: 1.1}")
    second.write_text("grpo: {epsilon: 0.22, max_steps: 22, temperature: 1.2}")
    grpo = load_config(
        "tiny",
        files=[first, second],
        sections={"grpo": {"max_steps": 33, "temperature": 1.3}},
        overrides=["grpo.temperature=1.4", "grpo.temperature=1.5"],
    ).grpo
    assert grpo.loss_type == GRPOSettings().loss_type  # a default
    assert grpo.num_generations == read_profile("tiny")["grpo"]["num_generations"]
    assert (grpo.beta, grpo.epsilon, grpo.max_steps, grpo.temperature) == (0.1, 0.22, 33, 1.5)


def test_a_section_from_prefect_changes_only_the_keys_that_were_given() -> None:
    given_keys = GRPOSettings(beta=0.04, lora=LoraSettings(r=8)).model_dump(exclude_unset=True, mode="json")
    assert given_keys == {"beta": 0.04, "lora": {"r": 8}}
    profile, config = load_config("tiny").grpo, load_config("tiny", sections={"grpo": given_keys}).grpo
    assert config.lora == LoraSettings(r=8)
    assert config == profile.model_copy(update={"beta": 0.04, "lora": LoraSettings(r=8)})
    assert profile.per_device_train_batch_size != GRPOSettings().per_device_train_batch_size


LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3), st.lists(st.integers(), max_size=2))
TREES: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.dictionaries(st.sampled_from("abc"), LEAVES, max_size=3),
    lambda inner: st.dictionaries(st.sampled_from("abc"), LEAVES | inner, max_size=3),
    max_leaves=8,
)


def leaves(tree: dict[str, Any], path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    found: dict[tuple[str, ...], Any] = {}
    for key, value in tree.items():
        found |= leaves(value, (*path, key)) if isinstance(value, dict) and value else {(*path, key): value}
    return found


@given(TREES, TREES)
def test_merge_keeps_every_leaf_of_the_later_tree(base: dict[str, Any], over: dict[str, Any]) -> None:
    before = leaves(base)
    merged = leaves(merge(base, over))
    for path, value in leaves(over).items():
        if value != {}:
            assert merged[path] == value
    for path, value in merged.items():
        assert path in leaves(over) or before[path] == value
    assert leaves(base) == before
    assert merge(base, {}) == base and merge({}, over) == over and merge(base, base) == base


def test_parse_yaml_and_validate_are_closed() -> None:
    assert parse_yaml("", "x") == {}
    assert validate({}) == PipelineConfig()


def test_refilling_inside_unsloth_is_refused() -> None:
    text = refused("grpo.max_refills=2", "run.backend=unsloth")
    assert "grpo.max_refills needs run.backend = trl" in text


def test_held_out_problems_come_from_the_gates() -> None:
    assert "is more than data.gate_rows = 48" in refused("grpo.eval_steps=5", "grpo.eval_problems=49")
    assert load_config("tiny", overrides=["grpo.eval_problems=49"]).grpo.eval_steps == 0  # not looked at
