"""What there is to say about the things that are served, for the API and for the pages alike.

One file per noun. Functions that block take an app and return frozen dataclasses: call them in a pool, as
`await gateway.read(topics.all_of, gateway.app)`. Times are microseconds since 1970 in UTC (`…_us`).
"""
