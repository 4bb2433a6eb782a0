"""Another controller on a recorded trace: what it would have chosen, and what that would have cost."""
