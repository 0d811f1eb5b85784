"""Priorities and weights of jobs that are submitted without a priority.

sources   the interface of a source of users' priorities, and the function of the application (`@app.priority`)
service   a source: an HTTP endpoint
resolver  queries the sources, caches their answers, and sets the priority of submitted jobs
"""

from fairlead.app.priority.resolver import PriorityResolver
from fairlead.app.priority.sources import PriorityHook

__all__ = ["PriorityHook", "PriorityResolver"]
