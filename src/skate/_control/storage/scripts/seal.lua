-- From now on this member takes nothing of an earlier epoch. The reply says what it has.
--
-- KEYS  meta   as in apply.lua
-- ARGV  cluster, epoch, stamp (the chain of this epoch; empty: what is noted stays)
-- Reply [verdict, epoch before, seq, trim, {}]
local meta = KEYS[1]
local has = redis.call('HMGET', meta, 'cluster', 'epoch', 'seq', 'trim')
if not has[1] then return {'NOTHING', 0, 0, 0, {}} end
if has[1] ~= ARGV[1] then return {'STRANGER', 0, 0, 0, {}} end
local epoch, seq, trim = tonumber(has[2]), tonumber(has[3]), tonumber(has[4])
if epoch > tonumber(ARGV[2]) then return {'FENCED', epoch, seq, 0, {}} end
redis.call('HSET', meta, 'epoch', ARGV[2])
if ARGV[3] ~= '' then redis.call('HSET', meta, 'stamp', ARGV[2] .. ' ' .. ARGV[3]) end
return {'OK', epoch, seq, trim, {}}
