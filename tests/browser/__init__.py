"""A package, so that its fixtures end with this folder: see ``playwright`` in conftest.py."""
