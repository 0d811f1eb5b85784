"""HTTP: everything a client or an operator may ask, and the shapes of the answers."""
