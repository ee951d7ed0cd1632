"""The replica of all attempts' streams, and its index ``streams.db``: written, read, rebuilt."""
