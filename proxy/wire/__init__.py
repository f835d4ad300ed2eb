"""RESP bytes and nothing else: requests read and written, a line found in a stream of replies."""
