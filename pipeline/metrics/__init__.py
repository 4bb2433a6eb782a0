"""What a server counts: the catalogue of metrics, and the tally that collects them in memory."""
