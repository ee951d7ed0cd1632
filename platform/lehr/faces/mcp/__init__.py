"""``lehr mcp``: a server of the Model Context Protocol, through which agents use Lehr.

Thin tools over the Python client. The server decides what an agent may do, by the role and the
budget of its token.

    server   the MCP server: its tools and resources     answers     short answers
    reading  tools that read lists, objects and plans    run_reading  those for the records of a run
    launching  tools that launch and stop
"""
