"""Mathematics: returns, losses, one file per algorithm."""
