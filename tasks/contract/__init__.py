"""The output contract that all stages share: prompt, answer span, and whether an answer is the gold.

`prompts` renders and encodes, `extraction` finds the answer span, `answers` compares exact values, `latex` asks a
symbolic comparison in a process of its own, `grading` puts them together, `checks` tests a tokenizer against it.
Nothing here imports torch, transformers or math-verify.
"""
