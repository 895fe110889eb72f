"""Benches: what a part of rltrain does in a second, beside other libraries and the machine's own limit."""
