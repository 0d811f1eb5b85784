"""The HTTP gateway: routes, WebSockets, event streams, authentication and the dashboard."""
