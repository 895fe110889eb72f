"""Networks and the distributions they return."""
