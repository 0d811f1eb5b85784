"""The dashboard: pages and sign-in (`pages.py`), the views (`views.py`), and the pages that follow them
(`live_views.py`). A view is the data that one page shows.

A page opens one WebSocket and names its view. Each distinct view is computed once for all pages that show it, and only
while such a page is open (`live_views.py`). Changes are sent as JSON merge patches.
"""
