-- Run one batch on this member of a chain, or say why not. One script: the rows and `seq` never come apart.
--
-- KEYS  meta   hash: cluster, epoch, seq, trim, stamp
--       log    hash: seq -> results:batch, the batches behind `trim`
-- ARGV  cluster, epoch, seq, acked, batch, prefix of the hashes that hold rows
--       batch: fields, each its length in four bytes and then its bytes; an operation is kind, table, key, and
--         put     value
--         delete                   (result: was there one?)
--         cas     expected, value  (only if it is as expected)    drop    expected  (the same, and deletes)
--         absent  value            (only if there is none)        missing           (is there none? changes nothing)
--         append  length, value    (only if the value has this length)
-- Reply [verdict, epoch, seq, trim, results], results: 1 or 0 for each operation but put, in order
--
-- Not msgpack: Redis' own reader (6.2) does not know the type of bytes. All of the batch is read before the first write,
-- because what a script has written stays if it fails later.
-- No time, no chance, no order of a hash: the same batch behind the same batches gives the same rows everywhere.
local meta, log = KEYS[1], KEYS[2]
local has = redis.call('HMGET', meta, 'cluster', 'epoch', 'seq', 'trim')
if not has[1] then return {'NOTHING', 0, 0, 0, {}} end
if has[1] ~= ARGV[1] then return {'STRANGER', 0, 0, 0, {}} end
local epoch, seq, trim = tonumber(has[2]), tonumber(has[3]), tonumber(has[4])
local wanted, acked = tonumber(ARGV[3]), tonumber(ARGV[4])
if epoch ~= tonumber(ARGV[2]) then return {'FENCED', epoch, seq, 0, {}} end
if wanted <= seq then
  redis.call('HSET', meta, 'seq', has[3]) -- changes nothing, and is refused by a replica
  local kept, results = redis.call('HGET', log, ARGV[3]), {}
  for done in string.gmatch(kept and string.match(kept, '^[01]*') or '', '.') do results[#results + 1] = tonumber(done) end
  return {'OK', epoch, seq, trim, results}
end
if wanted > seq + 1 then return {'GAP', epoch, seq, 0, {}} end

local batch, at, ops = ARGV[5], 1, {}
local more = {put = 1, delete = 0, cas = 2, drop = 1, absent = 1, missing = 0, append = 2}
local function field()
  local bytes
  bytes, at = struct.unpack('>I4c0', batch, at)
  return bytes
end
while at <= #batch do
  local op = {field(), field(), field()}
  for _ = 1, more[op[1]] do op[#op + 1] = field() end
  ops[#ops + 1] = op
end

-- First, because on `maxmemory` the first write of a script is the one that is refused.
redis.call('HSET', meta, 'seq', ARGV[3])
local results = {}
for _, op in ipairs(ops) do
  local kind, rows, key, new = op[1], ARGV[6] .. op[2], op[3], op[#op]
  if kind == 'put' then
    redis.call('HSET', rows, key, new)
  elseif kind == 'delete' then
    results[#results + 1] = redis.call('HDEL', rows, key)
  else
    local now, done = redis.call('HGET', rows, key), false
    if kind == 'cas' or kind == 'drop' then
      done = now == op[4]
    elseif kind == 'append' then
      done = #(now or '') == tonumber(op[4])
      new = (now or '') .. new
    else
      done = not now
    end
    if done and kind == 'drop' then
      redis.call('HDEL', rows, key)
    elseif done and kind ~= 'missing' then
      redis.call('HSET', rows, key, new)
    end
    results[#results + 1] = done and 1 or 0
  end
end
redis.call('HSET', log, ARGV[3], table.concat(results) .. ':' .. batch)
local trimmed = math.max(trim, math.min(acked, wanted))
for old = trim + 1, trimmed do redis.call('HDEL', log, string.format('%d', old)) end
redis.call('HSET', meta, 'trim', string.format('%d', trimmed))
return {'OK', epoch, wanted, trimmed, results}
