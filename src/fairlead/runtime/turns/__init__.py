"""Turns: slots whose callers do the work themselves.

tickets  the turns whose callers are in this process, waiting or holding
holding  the slots that these callers have
usher    claims slots for them, and hands a slot over to the process whose caller is next
looking  what can be asked about turns
turns    what callers ask for: open, wait, finish, fail, cancel, adopt
view     a turn as its caller sees it
block    `async with app.turn(...)`
"""
