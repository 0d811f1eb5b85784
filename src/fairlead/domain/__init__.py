"""Values and rules without I/O. Time and randomness are arguments, so the same code runs in tests and simulations."""
