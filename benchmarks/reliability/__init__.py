"""What the pipeline survives: real faults on real runs of the `tiny` profile; see `python -m benchmarks.reliability --help`."""
