"""The status page of the admin port: what it tells, as JSON, as a page and in a terminal."""
