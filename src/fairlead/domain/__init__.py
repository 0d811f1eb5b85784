"""What Fairlead knows, without I/O: time and randomness are arguments, so the same code runs in tests and
simulations."""
