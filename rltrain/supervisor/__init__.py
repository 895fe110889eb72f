"""The parent: starts, watches, restarts and stops the processes, and owns the run folder."""
