"""The status page of the admin port: its figures, as JSON, as a page and in a terminal."""
