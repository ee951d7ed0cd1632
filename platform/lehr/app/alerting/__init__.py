"""Actions on alerts: act on runs as their specs define, and send messages."""
