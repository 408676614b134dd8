"""Modelfiles of chat templates of several families; the Go template is checked by an interpreter of the part we use."""

import re

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tasks.export.modelfile import modelfile, turn_texts

TAG = "{{ '<start_working_out>' if add_generation_prompt else '' }}"
CHATML = (
    "{%- for m in messages -%}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}" + TAG
)
DEFAULT_SYSTEM = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are helpful<|im_end|>\\n' }}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}" + TAG
)
BARE = (
    "{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] + '</s>' }}"
    "{% set loop_messages = messages[1:] %}{% else %}{% set loop_messages = messages %}{% endif %}"
    "{% for m in loop_messages %}"
    "{% if m['role'] == 'user' %}{{ m['content'] }}{% else %}{{ m['content'] + '</s>' }}{% endif %}{% endfor %}" + TAG
)
LLAMA3 = (
    "{% for m in messages %}{% set c = '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' + "
    "m['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.first %}{% set c = '<|begin|>' + c %}{% endif %}{{ c }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}" + TAG
)
SYSTEM_IN_USER = (  # Llama 2 and Mistral write the system message into the first question
    "{% if messages[0]['role'] == 'system' %}{% set s = messages[0]['content'] + '\\n\\n' %}"
    "{% set rest = messages[1:] %}{% else %}{% set s = '' %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}{% if m['role'] == 'user' %}[INST] {{ s if loop.first }}{{ m['content'] }} [/INST]"
    "{% else %} {{ m['content'] }}</s>{% endif %}{% endfor %}" + TAG
)
THINKING = (  # Qwen3 writes empty thoughts into a reply that ends the conversation; a prompt never ends with one
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}"
    "{% if m['role'] == 'assistant' and loop.last %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
    "{{ m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}" + TAG
)


def renderer(template):
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    compiled = environment.from_string(template)
    return lambda messages, asked: compiled.render(messages=messages, add_generation_prompt=asked)


def go(template: str, system: str, messages: list[dict[str, str]]) -> str:
    """Interpret the few Go template actions that `modelfile` writes."""
    turns = ([{"role": "system", "content": system}] if system else []) + messages
    template = template.replace('{{ "{{" }}', "\0")
    loop = re.fullmatch(r"\{\{ range \.Messages \}\}(.*)\{\{ end \}\}\{\{ end \}\}(.*)", template, re.DOTALL)
    if loop is None:
        filled = template.replace("{{ .System }}", system).replace("{{ .Prompt }}", messages[0]["content"])
        return filled.replace("\0", "{{")
    branches = dict(re.findall(r'eq \.Role "(\w+)" \}\}(.*?)(?=\{\{ else if|\Z)', loop[1], re.DOTALL))
    text = "".join(branches[turn["role"]].replace("{{ .Content }}", turn["content"]) for turn in turns) + loop[2]
    return text.replace("\0", "{{")


def part(text: str, name: str) -> str:
    found = re.search(rf'^{name} """(.*?)"""$', text, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


@pytest.mark.parametrize(
    ("template", "system", "whole"),
    [
        (CHATML, "Think.", True),
        (CHATML, "", True),
        (DEFAULT_SYSTEM, "Think.", True),
        (DEFAULT_SYSTEM, "", False),
        (BARE, "Think.", True),
        (LLAMA3, "Think.", True),
        (SYSTEM_IN_USER, "Think.", False),
        (SYSTEM_IN_USER, "", True),
        (THINKING, "Think.", True),
    ],
)
def test_the_go_template_renders_what_the_chat_template_does(template, system, whole):
    render = renderer(template)
    text, remark = modelfile(gguf_name="model.gguf", render=render, system=system, eos_text="<|im_end|>", n_ctx=2048)
    assert bool(remark) != whole
    start = [{"role": "system", "content": system}] if system else []
    question = [{"role": "user", "content": "What is 1 + 1?"}]
    again = [*question, {"role": "assistant", "content": "2"}, {"role": "user", "content": "Sure?"}]
    assert part(text, "SYSTEM") == system
    for messages in [question, again] if whole else [question]:
        assert go(part(text, "TEMPLATE"), system, messages) == render([*start, *messages], True)
    assert text.startswith("FROM ./model.gguf\n")
    assert 'PARAMETER stop """<|im_end|>"""\nPARAMETER num_ctx 2048\nPARAMETER temperature 0\n' in text


def test_chatml_by_hand():
    texts = turn_texts(renderer(CHATML), has_system=True)
    assert texts.user == ("<|im_start|>user\n", "<|im_end|>\n")
    assert texts.generation == "<|im_start|>assistant\n<start_working_out>"


def test_braces_in_the_template_are_escaped():
    render = renderer("{% for m in messages %}{{ '{{' + m['role'] + '}}' + m['content'] }}{% endfor %}")
    text, _ = modelfile(gguf_name="m", render=render, system="S", eos_text="</s>", n_ctx=64)
    assert '{{ "{{" }}user}}' in text
    assert go(part(text, "TEMPLATE"), "S", [{"role": "user", "content": "q"}]) == "{{system}}S{{user}}q"


def test_a_system_message_with_quotation_marks_is_refused():
    with pytest.raises(ValueError, match="cannot hold"):
        modelfile(gguf_name="m", render=renderer(CHATML), system='a """ b', eos_text="</s>", n_ctx=64)
