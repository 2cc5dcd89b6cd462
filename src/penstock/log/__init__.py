"""The log: a durable, typed, partitioned event log, and the port that every log backend keeps."""
