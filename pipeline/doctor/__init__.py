"""Checks a deployment before it is built or started: `specdec doctor`."""
