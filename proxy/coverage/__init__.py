"""Track which keys may have members with deadlines, and when the next deadline passes. No I/O."""
