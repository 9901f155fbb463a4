"""Who leads, and which servers have all of each shard: one record, changed by compare-and-set.

file        beside the head; its lock keeps other services away
majority    among the servers themselves, so that another service can take over
leadership  until when a leader may answer from memory, and the standby that waits for its end
"""
