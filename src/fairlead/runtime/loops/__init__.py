"""The manager's loops, one file each, all of one shape: `async def tick(now) -> next_due`.

A tick does a bounded piece of work and returns the moment at which it wants to be called again; a backlog means "now".
Every write is conditional, so two managers at once do no harm.
"""
