"""The content of the dashboard's pages as plain data. No query runs unless a page is open."""
