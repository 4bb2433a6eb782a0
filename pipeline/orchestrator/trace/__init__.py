"""A recorded trace: a JSON line per round, read again by `specdec replay`."""
