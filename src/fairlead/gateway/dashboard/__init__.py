"""The dashboard: static pages and sign-in (`pages.py`), views (`views.py`), and live updates of views
(`live_views.py`). A view is the data that one page shows.

A page opens one WebSocket and names its view. Each distinct view is computed once for all pages that show it, and only
while such a page is open. Changes are sent as JSON merge patches.
"""
