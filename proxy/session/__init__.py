"""One client's stream of requests, without I/O: which are forwarded unchanged, which replaced, and which held."""
