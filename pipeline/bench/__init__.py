"""Instruments of `specdec bench` that need no server of ours, and the page that shows what all of them found."""
