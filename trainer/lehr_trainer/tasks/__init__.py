"""Tasks in the loop: items read from files, scored as lm-eval does, the same on any ranks."""
