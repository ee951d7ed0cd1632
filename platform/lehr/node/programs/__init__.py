"""Run a training program of the user's own: start it, read what it logs, keep what it saves.

A supervisor is one rank's process, in the place of Lehr's trainer; the program is its child. So
whatever the program does, its streams stay in order and its end is recorded.
"""
