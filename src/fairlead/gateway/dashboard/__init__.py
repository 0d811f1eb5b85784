"""The dashboard: pages (`pages.py`), who is signed in (`session.py`), and what they show, live (`socket.py`).

A page opens one WebSocket and names the view that it shows. Each distinct view is computed once for all who follow it,
and only while somebody does (`channel.py`); what changed goes out as a JSON merge patch (`patch.py`).
"""
