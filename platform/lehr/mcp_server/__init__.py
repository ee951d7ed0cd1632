"""``lehr mcp``: a server of the Model Context Protocol, through which agents use Lehr.

It talks to a Lehr server as the Python client does, with the token of the person who started it.
Agents read everything; they launch only what fits in a budget that a person stated.

    server     the MCP server: its tools and resources      errors     Lehr's errors as answers
    reading    tools that read      launching   tools that launch     resources   the same by URI
    estimates  what a launch is expected to use             ledger     the account on disk
    budget     what was used, is promised, and is left      watch      pauses what uses more
    answers    short answers
"""
