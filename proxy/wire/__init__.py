"""RESP bytes and nothing else: read and write requests, and find signs in a stream of replies."""
