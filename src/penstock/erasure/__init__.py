"""Personal fields, each subject's under a key of its own: destroy the key, and they are gone everywhere."""
