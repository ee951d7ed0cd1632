"""For people and programs: the client, the command line, agents' tools, joining nodes."""
