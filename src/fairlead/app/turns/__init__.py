"""Turns: slots whose callers do the work themselves.

turns            what callers ask for: open, wait, finish, fail, cancel, adopt
queries          reads turns
waiting          waits for a slot, and reports the queue position
context_manager  `async with app.turn(...)`
requests         ImageQueue's interface
"""
