"""Conformance: whether a deployment's text follows its target's law, shown from outside."""
