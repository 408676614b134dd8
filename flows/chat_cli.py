"""`grpo-pipeline chat MODEL`: talk to an exported model in the terminal."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from flows.console import AsJson, Files, Profile, Sets, configured, err, opened, out, user_errors
from tasks.errors import ConfigError

if TYPE_CHECKING:
    from tasks.chat.model import ChatModel, Reply

HELP = "/new forgets the conversation, /quit (or Ctrl-D) leaves, Ctrl-C stops an answer."


def chat(
    model: Annotated[
        str, typer.Argument(help="`production`, `latest`, a run id, an export artifact, or the path of a GGUF file.")
    ] = "latest",
    prompt: Annotated[
        str | None, typer.Option(help="Ask this and leave; a pipe is read when this is not given.")
    ] = None,
    quantization: Annotated[
        str | None, typer.Option("--format", help="Such as q8_0; default the smallest released.")
    ] = None,
    temperature: Annotated[float, typer.Option(min=0.0, max=10.0, help="0 is greedy, as evaluated.")] = 0.0,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest completion; default as in the proof.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of sampling, when the temperature is not 0.")] = 0,
    conversation: Annotated[
        bool, typer.Option("--conversation", help="Keep earlier turns in the prompt; training had single questions.")
    ] = False,
    threads: Annotated[int, typer.Option(min=0, help="0 takes the cores that this process may use.")] = 0,
    store: Annotated[
        str | None, typer.Option("--store", help="Store folder or URL; default the configuration's.")
    ] = None,
    profile: Profile = "smollm2-135m",
    sets: Sets = None,
    files: Files = None,
    as_json: AsJson = False,
) -> None:
    """Ask an exported model questions through llama.cpp, with the prompt it was trained with.

    Reasoning and answer are shown apart. The configuration (-p, -c, --set) says which store; its contract is used only for a GGUF file that has none beside it.
    """
    with user_errors():
        from tasks.chat.choose import choose
        from tasks.storage import store_of

        config = configured(profile, files, sets)
        chosen = choose(opened(store) if store else store_of(config), model, quantization, config.contract)
        if chosen.warning:
            err.print(f"[yellow]warning[/] {escape(chosen.warning)}", soft_wrap=True)
        asked = prompt if prompt is not None else None if sys.stdin.isatty() else sys.stdin.read()
        if asked is not None and not asked.strip():
            raise ConfigError(
                "nothing is asked", where="--prompt", fix="give a question, pipe one in, or use a terminal"
            )
        # Here, because it loads llama.cpp.
        from tasks.chat.model import ChatModel

        open_model = ChatModel(chosen, threads, seed)
        try:
            if asked is not None:
                reply = open_model.answer(asked.strip(), temperature=temperature, max_tokens=max_tokens)
                _show_json(asked.strip(), reply, open_model) if as_json else _show(reply, open_model)
            else:
                out.print(f"[bold]{escape(chosen.file.name)}[/]  {HELP}", soft_wrap=True)
                _loop(open_model, temperature, max_tokens, conversation)
        finally:
            open_model.close()


def _loop(model: ChatModel, temperature: float, max_tokens: int | None, conversation: bool) -> None:
    from tasks.errors import ModelError

    turns: list[tuple[str, str]] = []
    while True:
        try:
            question = out.input("[bold]>>> [/]").strip()
        except (EOFError, KeyboardInterrupt):
            out.print()
            return
        if question in ("/quit", "/exit"):
            return
        if question == "/new":
            turns.clear()
        elif question.startswith("/"):
            out.print(HELP)
        elif question:
            try:
                reply = model.answer(question, earlier=turns, temperature=temperature, max_tokens=max_tokens)
                _show(reply, model)
            except KeyboardInterrupt:
                out.print("\n[yellow](stopped)[/]")
                continue
            except ModelError as error:
                err.print(f"[bold red]error[/] {escape(error.message)}; {escape(error.fix)}", soft_wrap=True)
                continue
            if conversation:
                turns.append((question, reply.text))


def _show(reply: Reply, model: ChatModel) -> None:
    """Print a reply while it is written: reasoning dim, the answer on a line of its own."""
    from tasks.contract.streaming import parts

    shown, answered = "", False
    blank = ""
    for part, text in parts(reply, model.chosen.contract):
        if part == "reasoning":
            # Blank space is held back until more follows, so that none stands before or after the reasoning.
            body = (blank + text).rstrip() if shown else text.strip()
            blank = (blank + text)[len(body) :] if shown else text[len(text.rstrip()) :] if body else ""
            out.print(escape(body), style="dim", end="", soft_wrap=True, highlight=False)
            shown += body
        elif part == "answer":
            if not answered:
                out.print("\n[bold]answer:[/] " if shown else "[bold]answer:[/] ", end="")
            answered = True
            out.print(escape(text), style="bold green", end="", soft_wrap=True, highlight=False)
    out.print()
    if reply.truncated:
        err.print(f"[yellow](stopped after {reply.tokens} tokens; --max-tokens allows more)[/]")
    elif not answered:
        err.print("[yellow](no answer between the tags)[/]")


def _show_json(question: str, reply: Reply, model: ChatModel) -> None:
    from tasks.contract.streaming import parts

    texts = {"reasoning": "", "answer": ""}
    for part, text in parts(reply, model.chosen.contract):
        if part in texts:
            texts[part] += text
    print(
        json.dumps(
            {
                "file": str(model.chosen.file),
                "question": question,
                **{name: text.strip() for name, text in texts.items()},
                "completion": reply.text,
                "tokens": reply.tokens,
                "truncated": reply.truncated,
                "seconds": round(reply.seconds, 3),
            },
            ensure_ascii=False,
        )
    )
