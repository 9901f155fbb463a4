-- The first start of a cluster: an empty server becomes a member. Safe to repeat; anything else is left as it is.
--
-- KEYS  meta   as in apply.lua
-- ARGV  cluster, epoch, stamp (the chain of this epoch)
-- Reply [verdict, epoch, seq, trim, {}]
local meta = KEYS[1]
local has = redis.call('HMGET', meta, 'cluster', 'epoch', 'seq')
if not has[1] then
  redis.call('HSET', meta, 'cluster', ARGV[1], 'epoch', ARGV[2], 'seq', '0', 'trim', '0')
  redis.call('HSET', meta, 'stamp', ARGV[2] .. ' ' .. ARGV[3])
  return {'OK', tonumber(ARGV[2]), 0, 0, {}}
end
if has[1] ~= ARGV[1] then return {'STRANGER', 0, 0, 0, {}} end
if has[2] ~= ARGV[2] or has[3] ~= '0' then return {'FENCED', tonumber(has[2]), tonumber(has[3]), 0, {}} end
return {'OK', tonumber(has[2]), 0, 0, {}}
