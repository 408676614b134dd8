"""Answers of a GGUF file through llama-cpp-python, piece by piece, with the prompt that training used."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from jinja2 import TemplateError

from tasks.chat.choose import Chosen
from tasks.contract.prompts import messages
from tasks.errors import ModelError

# First, because it sets how llama.cpp's threads wait, which is read when the library is loaded.
from tasks.export.llama import available_threads, native_messages

# isort: split
from llama_cpp import Llama
from llama_cpp.llama_chat_format import Jinja2ChatFormatter


@dataclass
class Reply:
    """A completion while it grows: iterate over it for its text; the rest is known at the end.

    Attributes:
        truncated: it reached the limit without ending its turn.
        tokens: of the completion.
        seconds: from the first call to the last piece.
    """

    pieces: Iterator[dict[str, Any]]
    text: str = ""
    tokens: int = 0
    truncated: bool = False
    seconds: float = 0.0
    started: float = field(default_factory=time.monotonic)

    def __iter__(self) -> Iterator[str]:
        for piece in self.pieces:
            choice = piece["choices"][0]
            self.tokens += 1 if choice["text"] else 0
            self.truncated = choice.get("finish_reason") == "length"
            self.seconds = time.monotonic() - self.started
            if choice["text"]:
                self.text += choice["text"]
                yield choice["text"]


class ChatModel:
    """An open GGUF file.

    Raises:
        ModelError: it cannot be loaded (cause `corrupt_file`), or has no chat template.
    """

    def __init__(self, chosen: Chosen, threads: int = 0, seed: int = 0) -> None:
        self.chosen = chosen
        with native_messages() as log:
            try:
                self._llama = Llama(
                    str(chosen.file),
                    n_ctx=chosen.n_ctx,
                    n_gpu_layers=-1,
                    n_threads=threads or available_threads(),
                    seed=seed,
                    verbose=False,
                )
            except (ValueError, RuntimeError, OSError) as error:
                raise ModelError(
                    f"llama.cpp cannot load the file: {log.last() or error}",
                    where=str(chosen.file),
                    fix="export it again, or choose another file",
                    cause="corrupt_file",
                ) from error
        metadata = self._llama.metadata
        template = metadata.get("tokenizer.chat_template")
        if not template:
            raise ModelError("has no chat template", where=str(chosen.file), cause="no_chat_template")
        bos, eos = self._llama.token_bos(), self._llama.token_eos()
        self._format = Jinja2ChatFormatter(
            template, eos_token=self._piece(eos), bos_token=self._piece(bos), stop_token_ids=[eos]
        )

    def close(self) -> None:
        self._llama.close()

    def prompt(self, question: str, earlier: Sequence[tuple[str, str]] = ()) -> list[int]:
        """Token ids of the prompt.

        Args:
            earlier: (question, completion) of the turns before; a completion goes on after `reasoning_start`.
        """
        turns = messages(self.chosen.contract, question)
        start = self.chosen.contract.reasoning_start
        before = [
            {"role": role, "content": text}
            for asked, completion in earlier
            for role, text in (("user", asked), ("assistant", start + completion))
        ]
        try:
            text = self._format(messages=[*turns[:-1], *before, turns[-1]]).prompt
        except (TemplateError, ValueError, TypeError) as error:
            raise ModelError(f"the chat template does not render: {error}", where=str(self.chosen.file)) from error
        return list(self._llama.tokenize(text.encode("utf-8"), add_bos=False, special=True))

    def answer(
        self,
        question: str,
        *,
        earlier: Sequence[tuple[str, str]] = (),
        temperature: float = 0.0,
        max_tokens: int | None = None,
    ) -> Reply:
        """Begin a completion; greedy at temperature 0, as the model was evaluated.

        Raises:
            ModelError: (cause `prompt_too_long`) no room is left for an answer.
        """
        ids = self.prompt(question, earlier)
        room = self.chosen.n_ctx - len(ids) - 1
        if room < 1:
            raise ModelError(
                f"the prompt has {len(ids)} tokens and the context {self.chosen.n_ctx}",
                fix="ask a shorter question, or start anew with /new",
                cause="prompt_too_long",
            )
        pieces: Any = self._llama.create_completion(
            ids,
            max_tokens=min(room, max_tokens or self.chosen.max_tokens),
            temperature=temperature,
            top_p=1.0,
            top_k=0,
            min_p=0.0,
            stream=True,
        )
        return Reply(pieces)

    def _piece(self, token: int) -> str:
        return self._llama._model.token_get_text(token) if token >= 0 else ""
