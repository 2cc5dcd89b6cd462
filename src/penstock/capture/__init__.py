"""Capture: the changes of a database as topics of the log.

source.py     the port of sources: tables, steps, positions
envelope.py   the change envelope, one for all, and what it does to a table of the log
engine.py     source to log: position and data in one append
"""
