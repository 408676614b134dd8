"""The dataset stage: problems with gold answers, and worked traces for SFT."""
