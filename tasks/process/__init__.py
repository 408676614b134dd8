"""Running a stage in a process of its own: supervisor, launcher, what a stage sees, typed outcomes."""
