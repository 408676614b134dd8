"""A GGUF file through llama.cpp, on token ids: greedy completions of many prompts at once, and log-probabilities.

Ids go in and come out, so that nothing between the training tokenizer and llama.cpp is hidden by text. Greedy, one
fixed order of the prompts and one fixed number of parallel sequences: the same file answers the same way every time.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

# llama.cpp's threads otherwise spin while they wait for each other, which beside any other busy process makes a small
# model 10 to 30 times slower. libgomp reads this when it is loaded, so this must come before the first import of torch.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from llama_cpp import llama_cpp as api

from tasks.errors import ModelError

_ERROR_LEVEL = 4  # ggml_log_level in this llama.cpp: 1 debug, 2 info, 3 warning, 4 error, 5 continues the last

_ONE_THREAD_BELOW = 32 * 2**20  # bytes


@dataclass(frozen=True)
class Completion:
    """Token ids that followed a prompt, without the one that ended them; `truncated` when none did."""

    ids: list[int]
    truncated: bool


class NativeMessages:
    """The last lines that llama.cpp logged, kept for error messages instead of being printed."""

    def __init__(self) -> None:
        self._lines: deque[tuple[int, str]] = deque(maxlen=200)

    def add(self, level: int, text: bytes, _: Any) -> None:
        line = text.decode("utf-8", errors="replace").strip()
        if line and line.strip("."):
            self._lines.append((level, line))

    def last(self) -> str:
        """The first error of the newest burst (the later ones only repeat that loading failed), or nothing."""
        errors = [line for level, line in self._lines if level == _ERROR_LEVEL]
        return errors[0] if errors else ""


@contextlib.contextmanager
def native_messages() -> Iterator[NativeMessages]:
    """Collect llama.cpp's log for the duration; outside of it the log is dropped."""
    messages = NativeMessages()
    callback = api.llama_log_callback(messages.add)
    api.llama_log_set(callback, ctypes.c_void_p(0))
    try:
        yield messages
    finally:
        api.llama_log_set(_SILENT, ctypes.c_void_p(0))


# Kept for the life of the process: llama.cpp holds the pointer.
_SILENT = api.llama_log_callback(lambda level, text, data: None)


def available_threads() -> int:
    """Processor cores that this process may use."""
    try:
        return max(1, len(os.sched_getaffinity(0)))
    except AttributeError:  # not on Linux
        return max(1, os.cpu_count() or 1)


class LlamaFile:
    """An open GGUF file; use it as a context manager.

    Args:
        path: the file.
        n_ctx: longest prompt plus completion, in tokens.
        parallel: sequences decoded together.
        threads: 0 for the cores that this process may use.

    Raises:
        ModelError: llama.cpp cannot load the file (cause "corrupt_file"), with its own first error.
    """

    def __init__(self, path: Path, *, n_ctx: int = 2048, parallel: int = 16, threads: int = 0) -> None:
        self.path = path
        self.n_ctx = n_ctx
        self.parallel = parallel
        self._model: Any = None
        self._context: Any = None
        self._batch: Any = None
        with native_messages() as messages:
            self._model = self._load(messages)
            self._vocab = api.llama_model_get_vocab(self._model)
            self._context = self._make_context(threads or _threads_for(path), messages)
        self.n_vocab = int(api.llama_vocab_n_tokens(self._vocab))
        self._memory = api.llama_get_memory(self._context)
        self._batch = api.llama_batch_init(self._n_batch, 0, 1)

    def __enter__(self) -> LlamaFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free the native memory; calling it twice does nothing."""
        if self._batch is not None:
            api.llama_batch_free(self._batch)
        if self._context is not None:
            api.llama_free(self._context)
        if self._model is not None:
            api.llama_model_free(self._model)
        self._batch = self._context = self._model = None

    def _load(self, messages: NativeMessages) -> Any:
        parameters = api.llama_model_default_params()
        parameters.n_gpu_layers = -1 if api.llama_supports_gpu_offload() else 0
        parameters.check_tensors = True  # refuses NaN and infinite weights
        model = api.llama_model_load_from_file(os.fsencode(self.path), parameters)
        if model is None:
            raise ModelError(
                f"llama.cpp cannot load the file: {messages.last() or 'no reason given'}",
                where=str(self.path),
                fix="export it again; if it persists the tokenizer or the architecture does not fit this llama.cpp",
                cause="corrupt_file",
            )
        return model

    def _make_context(self, threads: int, messages: NativeMessages) -> Any:
        self._n_batch = max(512, self.parallel)
        parameters = api.llama_context_default_params()
        # One pool of cells for all sequences, so that the shared beginning of the prompts is stored and computed once.
        parameters.kv_unified = True
        parameters.n_ctx = self.n_ctx * self.parallel
        parameters.n_seq_max = self.parallel + 1
        parameters.n_batch = parameters.n_ubatch = self._n_batch
        parameters.n_threads = parameters.n_threads_batch = threads
        context = api.llama_init_from_model(self._model, parameters)
        if context is None:
            self.close()
            raise ModelError(
                f"llama.cpp could not allocate a context of {self.n_ctx} x {self.parallel} tokens: {messages.last()}",
                where=str(self.path),
                fix="lower export.parallel or export.n_ctx",
                cause="out_of_memory",
            )
        return context

    def tokenize(self, text: str, *, add_special: bool = False) -> list[int]:
        """Token ids of a text in which special tokens are recognised.

        Args:
            text: a rendered prompt.
            add_special: let llama.cpp add the BOS or EOS that the file asks for, as its server does.
        """
        data = text.encode("utf-8")
        size = len(data) + 8
        buffer = (api.llama_token * size)()
        count = api.llama_tokenize(self._vocab, data, len(data), buffer, size, add_special, True)
        if count < 0:
            raise ModelError(f"llama.cpp could not tokenize {text[:60]!r}", where=str(self.path), cause="tokens_differ")
        return list(buffer[:count])

    def chat_template(self) -> str:
        """The Jinja template in the file's header, "" for none."""
        return bytes(api.llama_model_chat_template(self._model, None) or b"").decode("utf-8", errors="replace")

    def special_ids(self) -> tuple[int, int]:
        """(BOS id, EOS id) that llama.cpp uses; -1 for none."""
        return int(api.llama_vocab_bos(self._vocab)), int(api.llama_vocab_eos(self._vocab))

    def adds_bos(self) -> bool:
        """Whether llama.cpp puts a BOS before every prompt."""
        return bool(api.llama_vocab_get_add_bos(self._vocab))

    def is_end(self, token: int) -> bool:
        """Whether llama.cpp stops at this token."""
        return bool(api.llama_vocab_is_eog(self._vocab, token))

    def piece(self, token: int) -> str:
        """The text of a token in the vocabulary, "" for none."""
        if not 0 <= token < self.n_vocab:
            return ""
        return bytes(api.llama_vocab_get_text(self._vocab, token)).decode("utf-8", errors="replace")

    def complete(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, progress: Callable[[int], None] | None = None
    ) -> list[Completion]:
        """Greedy completions of prompts given as token ids, in their order.

        Args:
            prompts: token ids, each not empty; none longer than `n_ctx - max_tokens`.
            max_tokens: most tokens to generate, not counting the one that ends the turn.
            progress: called with the number of prompts finished so far.

        Raises:
            ModelError: a prompt does not fit, or llama.cpp fails.
        """
        self._check_prompts(prompts, max_tokens)
        done: list[Completion | None] = [None] * len(prompts)
        # Equal work side by side: the longest prompts first, ties by position.
        order = sorted(range(len(prompts)), key=lambda i: (-len(prompts[i]), i))
        for start in range(0, len(order), self.parallel):
            wave = order[start : start + self.parallel]
            for index, completion in zip(wave, self._wave([prompts[i] for i in wave], max_tokens), strict=True):
                done[index] = completion
            if progress:
                progress(min(start + self.parallel, len(order)))
        return [completion for completion in done if completion is not None]

    def log_probabilities(self, ids: Sequence[int], start: int) -> np.ndarray:
        """Natural log-probability of each token `ids[start:]` given all before it; shape (len(ids) - start,).

        Raises:
            ValueError: unless 1 <= start < len(ids) <= n_ctx.
        """
        if not 1 <= start < len(ids) <= self.n_ctx:
            raise ValueError(f"need 1 <= start < length <= {self.n_ctx}, got start={start}, length={len(ids)}")
        self._forget()
        found = np.empty(len(ids) - start)
        for begin in range(0, len(ids), self._n_batch):
            piece = list(range(begin, min(begin + self._n_batch, len(ids))))
            self._decode([(ids[i], i, 0, start - 1 <= i < len(ids) - 1) for i in piece])
            for row, i in enumerate(piece):
                if start - 1 <= i < len(ids) - 1:
                    logits = self._logits(row).astype(np.float64)
                    top = logits.max()
                    found[i + 1 - start] = logits[ids[i + 1]] - top - np.log(np.exp(logits - top).sum())
        return found

    def _wave(self, prompts: list[Sequence[int]], max_tokens: int) -> list[Completion]:
        """Complete up to `parallel` prompts together; their shared beginning is computed once, as sequence 0."""
        self._forget()
        shared = min(_shared_length(prompts), min(len(prompt) for prompt in prompts) - 1)
        self._feed([(prompts[0][i], i, 0, False) for i in range(shared)])
        completions: list[list[int]] = [[] for _ in prompts]
        truncated = [True] * len(prompts)
        for sequence in range(1, len(prompts) + 1):
            if shared:
                api.llama_memory_seq_cp(self._memory, 0, sequence, 0, shared)
        following = []
        for row, prompt in enumerate(prompts):
            rest = [(prompt[i], i, row + 1, i == len(prompt) - 1) for i in range(shared, len(prompt))]
            following.append(self._feed(rest))
        active = list(range(len(prompts)))
        for step in range(max_tokens + 1):
            for row in list(active):
                if self.is_end(following[row]):
                    truncated[row] = False
                    active.remove(row)
                    # Its cells are free again, and the others attend over fewer.
                    api.llama_memory_seq_rm(self._memory, row + 1, -1, -1)
                elif step < max_tokens:
                    completions[row].append(following[row])
            if not active or step == max_tokens:
                break
            position = [len(prompts[row]) + step for row in active]
            self._decode([(following[row], at, row + 1, True) for row, at in zip(active, position, strict=True)])
            for i, row in enumerate(active):
                following[row] = int(self._logits(i).argmax())
        return [Completion(ids, cut) for ids, cut in zip(completions, truncated, strict=True)]

    def _feed(self, tokens: list[tuple[int, int, int, bool]]) -> int:
        """Decode a stretch of one sequence; the greedy next token if the last one asks for logits, else -1."""
        following = -1
        for begin in range(0, len(tokens), self._n_batch):
            piece = tokens[begin : begin + self._n_batch]
            self._decode(piece)
            if piece[-1][3]:
                following = int(self._logits(len(piece) - 1).argmax())
        return following

    def _decode(self, tokens: list[tuple[int, int, int, bool]]) -> None:
        """One call of llama.cpp on (token, position, sequence, wants logits), at most `_n_batch` of them."""
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, (token, position, sequence, wanted) in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = wanted
        with native_messages() as messages:
            code = api.llama_decode(self._context, batch)
        if code != 0:
            raise ModelError(
                f"llama.cpp could not decode (code {code}): {messages.last() or 'no reason given'}",
                where=str(self.path),
                fix="lower export.parallel or raise export.n_ctx",
                cause="decode_failed",
            )

    def _logits(self, row: int) -> np.ndarray:
        """Logits after the `row`-th token of the last batch; shape (n_vocab,), valid until the next decode."""
        return np.ctypeslib.as_array(api.llama_get_logits_ith(self._context, row), shape=(self.n_vocab,))

    def _forget(self) -> None:
        api.llama_memory_clear(self._memory, True)

    def _check_prompts(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> None:
        for i, prompt in enumerate(prompts):
            if not prompt:
                raise ModelError("a prompt without tokens", where=f"prompt {i}", cause="prompt_empty")
            if len(prompt) + max_tokens > self.n_ctx:
                raise ModelError(
                    f"a prompt of {len(prompt)} tokens and {max_tokens} new ones exceed n_ctx={self.n_ctx}",
                    where=f"prompt {i}",
                    fix=f"set export.n_ctx to at least {len(prompt) + max_tokens}",
                    cause="prompt_too_long",
                )


def _threads_for(file: Path) -> int:
    """One thread for a file whose layers take less time than handing work to a second one; all cores otherwise."""
    return 1 if file.stat().st_size < _ONE_THREAD_BELOW else available_threads()


def _shared_length(prompts: list[Sequence[int]]) -> int:
    """Number of leading tokens that all prompts share."""
    shared = 0
    for tokens in zip(*prompts, strict=False):
        if len(set(tokens)) > 1:
            break
        shared += 1
    return shared
