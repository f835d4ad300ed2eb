"""The asyncio side of a client's connection: transports, back-pressure and an orderly end."""
