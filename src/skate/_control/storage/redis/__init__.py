"""The engine on Redis servers: each shard a chain of servers that know nothing of it.

Read in this order; the decisions are in `skate._core.cluster.chain`.

store            a store is opened, begun, adopted; its shards as one storage
shard            one shard: the writer of a chain as a storage
batches          batches become entries of the chain
members          what the writer wants of the servers, and what they answer
joiners          servers that come back, or come new
rows             reading
file_authority   who leads, and which servers have everything: a file
majority_authority  … or a majority of voters, so that a standby can take over
leadership       the lease of a leader, and the standby that waits for its end
identity         what a shard knows about the store
handshake        connecting, and the servers that are refused
wire             one connection
poller           sockets, timers and errands behind one descriptor
requests         RESP and the scripts
status           what is shown

`redis` and `hiredis` (`pip install skate[redis]`) are imported here and nowhere else.
"""
