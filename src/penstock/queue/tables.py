"""The tables of the embedded queues.

A message's body is written once and removed once. Where it is in its life is told by small rows beside it:
it is in exactly one of `ready`, `delayed`, `leased` and `dead`.
"""

from __future__ import annotations

TABLES = """
CREATE TABLE IF NOT EXISTS counter (next INTEGER NOT NULL);  -- see numbers.py
INSERT INTO counter SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM counter);
CREATE TABLE IF NOT EXISTS identity (id TEXT NOT NULL);
INSERT INTO identity SELECT lower(hex(randomblob(16))) WHERE NOT EXISTS (SELECT 1 FROM identity);
CREATE TABLE IF NOT EXISTS positions (producer TEXT PRIMARY KEY, position BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS queues (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, settings TEXT NOT NULL,
    length INTEGER NOT NULL,   -- of what is ready; kept only where the length is limited
    holder INTEGER);           -- a reply queue goes with its holder
CREATE TABLE IF NOT EXISTS exchanges (name TEXT PRIMARY KEY, kind TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS bindings (
    exchange TEXT, queue INTEGER, pattern TEXT, PRIMARY KEY (exchange, queue, pattern)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS messages (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL, key TEXT NOT NULL, priority INTEGER NOT NULL,
    published_us INTEGER NOT NULL, extra TEXT, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS ready (
    queue INTEGER, rank INTEGER, seq INTEGER, attempts INTEGER NOT NULL, expires_us INTEGER,
    PRIMARY KEY (queue, rank, seq)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS ready_expires ON ready (expires_us) WHERE expires_us IS NOT NULL;
CREATE TABLE IF NOT EXISTS delayed (
    queue INTEGER, due_us INTEGER, seq INTEGER, rank INTEGER NOT NULL, attempts INTEGER NOT NULL,
    expires_us INTEGER, PRIMARY KEY (queue, due_us, seq)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS leased (
    seq INTEGER PRIMARY KEY, queue INTEGER NOT NULL, rank INTEGER NOT NULL, attempts INTEGER NOT NULL,
    expires_us INTEGER, consumer INTEGER NOT NULL, until_us INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS dead (
    seq INTEGER PRIMARY KEY, queue INTEGER NOT NULL, cause TEXT NOT NULL, reason TEXT NOT NULL,
    at_us INTEGER NOT NULL, attempts INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS dead_queue ON dead (queue, seq);
CREATE TABLE IF NOT EXISTS history (
    seq INTEGER, number INTEGER, at_us INTEGER NOT NULL, outcome TEXT NOT NULL, reason TEXT NOT NULL,
    PRIMARY KEY (seq, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS holders (id INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS consumers (
    id INTEGER PRIMARY KEY, holder INTEGER NOT NULL, queue INTEGER NOT NULL, active INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS consumers_queue ON consumers (queue);
"""
