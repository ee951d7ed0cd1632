"""The folders that tests read files from."""

from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
DATA = TESTS / "data"
GOLDENS = TESTS / "goldens"
TESTING = TESTS / "lehr_testing"
