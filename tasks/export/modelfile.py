"""An Ollama Modelfile whose TEMPLATE gives the prompts of training.

Ollama wants a Go template beside the Jinja template that the GGUF file carries. It is not translated but observed: a
few conversations are rendered with the real chat template, the text around each turn is cut out, and the result is
checked against further renderings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jinja2 import TemplateError

Messages = Sequence[dict[str, str]]
Render = Callable[[Messages, bool], str]
"""(messages, add_generation_prompt) -> text, by the trained chat template."""

# Texts that no chat template contains; upper and lower case so that a template's own filters would show.
_SYSTEM, _USER, _REPLY, _AGAIN = "QxSystemXq", "QxUserXq", "QxReplyXq", "QxAgainXq"


@dataclass(frozen=True)
class TurnTexts:
    """The text before and after the content of each role's turn, and after the last turn."""

    system: tuple[str, str]
    user: tuple[str, str]
    assistant: tuple[str, str]
    generation: str

    def render(self, messages: Messages) -> str:
        """What the Go template made from these texts renders, generation prompt included."""
        parts = {"system": self.system, "user": self.user, "assistant": self.assistant}
        turns = (parts[m["role"]][0] + m["content"] + parts[m["role"]][1] for m in messages)
        return "".join(turns) + self.generation


def turn_texts(render: Render, has_system: bool) -> TurnTexts | None:
    """The texts around the turns, or None when no fixed ones give what the chat template renders.

    Args:
        has_system: whether training prompts begin with a system message.
    """
    system = {"role": "system", "content": _SYSTEM}
    user, reply, again = (
        {"role": role, "content": text} for role, text in (("user", _USER), ("assistant", _REPLY), ("user", _AGAIN))
    )
    start: list[dict[str, str]] = [system] if has_system else []
    try:
        asked = render([*start, user], True)
        after_user = _after(render([*start, user], False), _USER)
        after_reply = _after(render([*start, user, reply], False), _REPLY)
        twice = render([*start, user, reply, again], True)
    except (TemplateError, ValueError, TypeError, LookupError):
        return None  # the template refuses conversations of this shape
    try:
        before_user = _between(twice, _REPLY, _AGAIN)
        before_reply = _between(twice, _USER, _REPLY)
        if not before_user.startswith(after_reply) or not before_reply.startswith(after_user):
            return None
        before_user, before_reply = before_user[len(after_reply) :], before_reply[len(after_user) :]
        opening = _between(asked, _SYSTEM, _USER) if has_system else asked[: asked.index(_USER)]
        end = _after(asked, _USER)
    except ValueError:
        return None
    if not opening.endswith(before_user) or not end.startswith(after_user):
        return None
    before_system = asked[: asked.index(_SYSTEM)] if has_system else ""
    after_system = opening.removesuffix(before_user) if has_system else ""
    if not has_system and opening != before_user:
        return None  # something stands before the first turn only, such as a default system message
    texts = TurnTexts(
        (before_system, after_system), (before_user, after_user), (before_reply, after_reply), end[len(after_user) :]
    )
    conversations = [[*start, user], [*start, user, reply, again], [*start, user, reply, again, reply, user]]
    exact = all(texts.render(messages) == render(messages, True) for messages in conversations)
    return texts if exact else None


def modelfile(
    *,
    gguf_name: str,
    render: Render,
    system: str,
    eos_text: str,
    n_ctx: int,
) -> tuple[str, str]:
    """(Modelfile, remark); the remark is empty when whole conversations render as in training.

    Args:
        gguf_name: the file beside the Modelfile.
        render: the trained chat template.
        system: the contract's system message, "" for none.
        eos_text: token that ends a turn, used as stop text.
        n_ctx: context length.

    Raises:
        ValueError: a text holds three quotation marks in a row, which a Modelfile cannot express.
    """
    texts = turn_texts(render, bool(system))
    remark = ""
    if texts is not None:
        template = _conversation(texts)
    else:
        template = _single_turn(render, bool(system))
        remark = (
            "the chat template depends on more than the roles: the Modelfile renders single questions as in training"
        )
    lines = [f"FROM ./{gguf_name}", f"TEMPLATE {_quoted(template)}"]
    if system:
        lines.append(f"SYSTEM {_quoted(system)}")
    # Greedy, as the file was proved; Ollama's default penalty for repeated tokens would disturb every sum.
    lines += [f"PARAMETER stop {_quoted(eos_text)}", f"PARAMETER num_ctx {n_ctx}"]
    lines += ["PARAMETER temperature 0", "PARAMETER repeat_penalty 1"]
    return "\n".join(lines) + "\n", remark


def _conversation(texts: TurnTexts) -> str:
    turns = []
    for i, (role, (before, after)) in enumerate(
        (("system", texts.system), ("user", texts.user), ("assistant", texts.assistant))
    ):
        word = "if" if i == 0 else "else if"
        turns.append(f'{{{{ {word} eq .Role "{role}" }}}}{_literal(before)}{{{{ .Content }}}}{_literal(after)}')
    return "{{ range .Messages }}" + "".join(turns) + "{{ end }}{{ end }}" + _literal(texts.generation)


def _single_turn(render: Render, has_system: bool) -> str:
    user = {"role": "user", "content": _USER}
    if not has_system:
        before, after = render([user], True).split(_USER, 1)
        return f"{_literal(before)}{{{{ .Prompt }}}}{_literal(after)}"
    text = render([{"role": "system", "content": _SYSTEM}, user], True)
    before, rest = text.split(_SYSTEM, 1)
    middle, after = rest.split(_USER, 1)
    return f"{_literal(before)}{{{{ .System }}}}{_literal(middle)}{{{{ .Prompt }}}}{_literal(after)}"


def _literal(text: str) -> str:
    """Text as a Go template prints it; an opening `{{` becomes an action that prints it."""
    return text.replace("{{", '{{ "{{" }}')


def _quoted(text: str) -> str:
    if '"""' in text or text.endswith('"'):
        raise ValueError(f"a Modelfile cannot hold this text: {text[:60]!r}")
    return f'"""{text}"""'


def _after(text: str, mark: str) -> str:
    return text[text.index(mark) + len(mark) :]


def _between(text: str, first: str, second: str) -> str:
    begin = text.index(first) + len(first)
    return text[begin : text.index(second, begin)]
