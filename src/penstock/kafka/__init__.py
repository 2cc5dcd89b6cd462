"""The log port on Kafka, and a real Kafka on this machine."""
