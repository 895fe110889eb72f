"""When a batch fires (pure) and what answers it."""
