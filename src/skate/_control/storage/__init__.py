"""Where the control service keeps what must outlive it: rows of (table, key), written in numbered batches.

opening      from what the user typed to an engine
interface    what every engine does: operations, batches, results; read this first
errors       what can go wrong, and what to do about it
admission    the limits: how large a batch is, how many may wait
memory       an engine that forgets with its process
sqlite       an engine on this machine's disk: one thread, grouped commits
sqlite_file    … its file: schema, checksums, migration, size
directory      … its directory: one service at a time
redis/       an engine on Redis and Valkey servers: chains, one a shard; see there
slots        which of several shards has a key
sharded      several storages as one
"""
