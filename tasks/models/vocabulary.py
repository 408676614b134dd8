"""A small SentencePiece vocabulary for the tiny model, and the same vocabulary as a transformers tokenizer.

One vocabulary, three readers: `sentencepiece` trains it (`tokenizer.model`, which the GGUF converter reads and
llama.cpp follows), and `tokenizer.json` holds the same merges for transformers. Byte fallback keeps any text
representable; digits stay single; no space is put before the text and none is dropped, so the three agree on ids.
The four default tags are frequent in the training text, so each becomes one ordinary piece: not a special token.
"""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

PIECES = 448
UNKNOWN, BOS, EOS, PAD, TURN_START = "<unk>", "<s>", "<|im_end|>", "<|pad|>", "<|im_start|>"
SPECIAL = (UNKNOWN, BOS, EOS, PAD, TURN_START)
TAGS = ("<start_working_out>", "<end_working_out>", "<SOLUTION>", "</SOLUTION>")
SPACE = "\u2581"
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)

ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+-*/=().,:;?!'<>_$%"
NAMES = ("Ann", "Ben", "Mia", "Tom", "Lily", "Sam")
THINGS = ("apples", "pencils", "books", "marbles", "coins", "eggs")
ANIMALS = ("cows", "hens", "dogs", "spiders", "ants", "birds")
ROLES = ("user", "assistant", "system")


def training_lines(lines: int = 600) -> list[str]:
    """Sentences of the kind that the built-in generators write, always the same ones."""
    rng = random.Random(0)
    start, end, answer_start, answer_end = TAGS
    out: list[str] = []
    for _ in range(lines):
        a, b, c = (rng.randrange(2, 1000) for _ in range(3))
        name, thing, animal = rng.choice(NAMES), rng.choice(THINGS), rng.choice(ANIMALS)
        out += [
            rng.choice(
                (f"What is {a} + {b} ?", f"Work out {a} - {b} + {c}", f"Compute {a} * {b}", f"What is {a} + {b}?")
            ),
            rng.choice(
                (
                    f"{name} has {a} {thing} and buys {b} more. How many {thing} does {name} have now?",
                    f"{name} had {a} {thing} and gave {b} to a friend. How many are left?",
                    f"There are {a} boxes with {b} {thing} in each box. How many {thing} are there in all?",
                    f"A farm has {a} {animal} and {b} {rng.choice(ANIMALS)}. How many legs are there altogether?",
                )
            ),
            f"{a} + {b} = {a + b}, {a + b} + {c} = {a + b + c}",
            f"{a * b} / {b} = {a}, {a} - {c} = {a - c}",
            *TAGS,
            f"{end}\n{answer_start}{a + b}{answer_end}",
            f"between {start} and {end} answer between {answer_start} and {answer_end}",
            *ROLES,
        ]
    return out


def train_sentencepiece(pieces: int = PIECES) -> bytes:
    """The serialized SentencePiece model: BPE, byte fallback, nothing normalized, the same bytes every time."""
    import sentencepiece

    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for text in training_lines() for line in text.split("\n")]),
        model_writer=out,
        model_type="bpe",
        vocab_size=pieces,
        byte_fallback=True,
        character_coverage=1.0,
        required_chars=ALPHABET,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        split_digits=True,
        split_by_unicode_script=False,
        max_sentencepiece_length=24,
        num_threads=1,
        unk_id=0,
        bos_id=1,
        eos_id=2,
        pad_id=3,
        unk_piece=UNKNOWN,
        bos_piece=BOS,
        eos_piece=EOS,
        pad_piece=PAD,
        control_symbols=[TURN_START],
        minloglevel=2,
    )
    return out.getvalue()


def tokenizer_json(model: bytes) -> dict[str, Any]:
    """The same vocabulary as the content of a `tokenizer.json` (BPE with merges, in SentencePiece's order).

    SentencePiece merges the adjacent pair whose union has the best score; the merges are therefore every split of every
    piece into two pieces, best piece first.
    """
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    size = processor.vocab_size()
    vocab = {processor.id_to_piece(i): i for i in range(size)}
    ordinary = [
        i for i in range(size) if not (processor.is_control(i) or processor.is_unknown(i) or processor.is_byte(i))
    ]
    known = {processor.id_to_piece(i) for i in ordinary}
    merges: list[list[str]] = []
    for i in sorted(ordinary, key=lambda i: -processor.get_score(i)):
        piece = processor.id_to_piece(i)
        splits = [(piece[:k], piece[k:]) for k in range(1, len(piece))]
        merges += [list(pair) for pair in splits if pair[0] in known and pair[1] in known]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": vocab[token], "content": token, **flags} for token in SPECIAL],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": UNKNOWN,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": merges,
        },
    }


def tokenizer_config(context: int) -> dict[str, Any]:
    """The content of `tokenizer_config.json`; `context` is the longest sequence in tokens."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "unk_token": UNKNOWN,
        "add_bos_token": False,
        "add_eos_token": False,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
        "padding_side": "left",
    }


def write_vocabulary(dest: Path, *, context: int) -> int:
    """Write the tokenizer files into `dest` and return the number of ids."""
    model = train_sentencepiece()
    (dest / "tokenizer.model").write_bytes(model)
    content = tokenizer_json(model)
    _write_json(dest / "tokenizer.json", content)
    _write_json(dest / "tokenizer_config.json", tokenizer_config(context))
    (dest / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    return len(content["model"]["vocab"])


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
