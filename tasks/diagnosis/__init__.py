"""Why a GRPO run does not learn: named causes from a training log of any origin.

`doctor.diagnose` reads a log and names the cause; `callback.WatchdogCallback` does so while a run trains (the only module here that
imports transformers).
"""
