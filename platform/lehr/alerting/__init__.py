"""What the server does about alerts: acts on runs as their specs say, and sends messages."""
