"""Accepting clients: the listening sockets, TLS, and the limit on clients."""
