"""Where clients arrive: the listening sockets, TLS on them, and how many may come in."""
