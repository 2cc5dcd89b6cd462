"""Event-time processing on Spark: the one room that imports pyspark."""
