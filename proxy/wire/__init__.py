"""RESP on the wire: read and write requests, and find signs in a stream of replies."""
