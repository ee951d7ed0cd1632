"""Maintenance of the databases: migrations, backup and restore, checks for damage."""
