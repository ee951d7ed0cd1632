"""Types of the REST API's answers, shared by CLI, dashboard and client.

Times are seconds since the epoch (UTC). An unknown value is null, never 0. Non-finite numbers are
the strings "NaN", "Infinity", "-Infinity".
"""
