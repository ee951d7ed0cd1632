"""The REST API under ``/api/v1``, its event stream, and the dashboard on top of them.

``python -m lehr_api`` runs it; ``lehr_api.app.create_app`` builds it.
"""
