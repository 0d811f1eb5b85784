"""The periodic loops. Each has a method `async def tick(now) -> next_due`.

A tick does a bounded piece of work and returns the time of the next tick, which is `now` if there is a backlog. Every
write is conditional, so two managers that run the same loop do no harm.
"""
