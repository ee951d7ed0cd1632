"""What somebody who helps needs to see of a server, in one file without secrets."""
