"""Shared memory: arena, trajectory ring, mailboxes, weight board, counter board. What flows between processes."""
