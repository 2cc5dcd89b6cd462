"""Apps: topics, definitions, and what runs, reads and proves them."""
