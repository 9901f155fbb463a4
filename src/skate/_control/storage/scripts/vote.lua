-- One voter of the register that says who leads: its promises, what it accepted, and how it is admitted.
--
-- KEYS  vote   hash: token, life, promised_n, promised_by, accepted_n, accepted_by, value
-- ARGV  prepare  token, life, remembers, n, by
--       accept   token, life, remembers, n, by, value
--       admit    token, life, remembers, n, by, value     whatever is there
--       first    token, life, remembers, n, by, value     only if there is nothing; the reply has what is there then
-- Reply [vote, promised_n, promised_by, accepted_n, accepted_by, value]
--
-- life: the run id of this server. A server that was started again may have old data, and so may have forgotten what it
-- promised: it does not vote. remembers: 1 if it writes every change to its disk before it answers; then a promise
-- outlives it, and `*` stands for any life.
-- Not compared with `<`: Lua compares texts by the locale, which may differ from server to server.
local vote, kind, token = KEYS[1], ARGV[1], ARGV[2]
local life, remembers, n, by = ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6]
local has = redis.call('HMGET', vote, 'token', 'life', 'promised_n', 'promised_by', 'accepted_n', 'accepted_by', 'value')

local function order(m, a, k, b)
  if m ~= k then return m < k and -1 or 1 end
  for at = 1, math.min(#a, #b) do
    if a:byte(at) ~= b:byte(at) then return a:byte(at) < b:byte(at) and -1 or 1 end
  end
  return #a == #b and 0 or (#a < #b and -1 or 1)
end

if kind == 'admit' or (kind == 'first' and not has[7]) then
  redis.call('DEL', vote)
  redis.call('HSET', vote, 'token', token, 'life', remembers == '1' and '*' or life, 'promised_n', ARGV[5],
    'promised_by', by, 'accepted_n', ARGV[5], 'accepted_by', by, 'value', ARGV[7])
  return {'OK', n, by, n, by, ARGV[7]}
end
if kind == 'first' then return {'OK', tonumber(has[3]), has[4], tonumber(has[5]), has[6], has[7]} end

local lives = has[2] == life or (has[2] == '*' and remembers == '1')
if token == '' or has[1] ~= token or not lives then return {'NOT_ADMITTED', 0, '', 0, '', has[7] or ''} end
local compared = order(n, by, tonumber(has[3]), has[4])
if compared < 0 or (compared == 0 and kind == 'prepare') then return {'OUTBID', tonumber(has[3]), has[4], 0, '', ''} end
redis.call('HSET', vote, 'promised_n', ARGV[5], 'promised_by', by)
if kind == 'prepare' then return {'OK', n, by, tonumber(has[5]), has[6], has[7]} end
redis.call('HSET', vote, 'accepted_n', ARGV[5], 'accepted_by', by, 'value', ARGV[7])
return {'OK', n, by, n, by, ARGV[7]}
