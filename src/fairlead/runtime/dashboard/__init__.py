"""What the dashboard shows, as plain data. Nothing here runs unless somebody looks."""
