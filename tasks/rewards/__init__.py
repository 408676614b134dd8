"""Reward functions for GRPO: presets, the user's own, the guard around them, and the audit of their order."""
