"""The code of each child process."""
