"""The status page of the admin port: its figures as JSON, as a web page and in a terminal."""
