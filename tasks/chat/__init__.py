"""Trying an exported model: which file is meant, and its answers as they are written. `model.py` loads llama.cpp."""
