"""Reports: a run, sweep or rollout as one HTML file that needs nothing else.

``document`` writes a page and its parts. ``reports`` chooses the parts from views.
"""
