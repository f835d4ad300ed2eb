"""One client connection: the sans-I/O session, and the asyncio shell around it with back-pressure both ways."""
