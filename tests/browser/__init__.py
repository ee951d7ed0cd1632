"""A package, so that its fixtures can end with it: see ``playwright`` in conftest.py."""
