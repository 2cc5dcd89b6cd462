"""Everybody's timeline: the posts of those whom one follows, kept current.

    penstock run examples/timeline.py
    penstock view examples/timeline.py timelines --follow

A new post appears for all who follow its author. Who begins to follow somebody gets the posts there are, who
stops loses them; a post that is changed or deleted is so on every timeline.
"""

from pyspark.sql import DataFrame

import penstock as ps

app = ps.App("timeline")

posts = app.table("posts", "post_id BIGINT, author STRING, text STRING", key="post_id")
follows = app.table("follows", "follower STRING, author STRING", key=["follower", "author"])


@app.view(key=["follower", "post_id"])
def timelines() -> DataFrame:
    return ps.join_tables(posts, follows, on="author")
