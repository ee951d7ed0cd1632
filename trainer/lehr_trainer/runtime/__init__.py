"""The process around the training: launch, distributed set-up, compilation, precision, failures."""
