"""A server of the Model Context Protocol, through which agents use Lehr: ``lehr mcp``, or ``/mcp``.

Thin tools over the Python client. The server decides what an agent may do, by the role and the
budget of its token.

    server   the MCP server: its tools and resources     answers     short answers
    reading  tools that read, or wait                     launching   tools that launch and stop
    SKILL.md the page that ``lehr skills add`` writes into a project
"""
