"""``lehr.db``: runs, attempts, transitions, requests, sweeps, rollouts, checkpoints, nodes."""
