"""A deployment under mixed load, cancellations and faults, every answer compared with plain decoding."""
