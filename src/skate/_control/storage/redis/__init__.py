"""The engine on Redis servers: each shard a chain of servers that know nothing of it.

Read in this order; the decisions are in `skate._core.cluster.chain`.

store        a store is opened, begun, adopted; its shards as one storage
shard        one shard: the writer of a chain as a storage
batches      batches become entries of the chain
members      what the writer wants of the servers, and what they answer
joiners      servers that come back, or come new
rows         reading
identity     what a shard knows about the store
status       what is shown
offline      the store as seen from outside: survey, dump, check, wipe
authority/   who leads, and which servers have everything: a file, or a majority of voters; leases and standbys
connection/  addresses, connecting, requests and answers, one descriptor for all that is waited for

`redis` and `hiredis` (`pip install skate[redis]`) are imported in here and nowhere else, and not by `address`.
"""
