"""Files: bytes in an object store, named by rows of the database (docs/adr/0030)."""
