"""Decide, without I/O, which requests of a client are forwarded unchanged, which are replaced, and which are held."""
