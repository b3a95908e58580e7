-- One call is one unit of work: everything is read first and changed in memory, then written once by `flush`. A Lua
-- error before the flush leaves Redis untouched (Redis does not roll scripts back), a node changed ten times in a call
-- is written and announced once, and a commit of one task costs a dozen redis calls.
--
-- Keys, all under one hash tag (P = KEYS[1]):
--   P:meta   hash  gen whole run term rev stamp seq layout parts e<partition>
--   P:nodes  hash  s:<node> spec | u:<node> use (a NodeUse as JSON) | q:<path> queue (a QueueUse as JSON, with limits)
--   P:work   hash  c:<claim> | t:<task> its holder | p:<plan> text | k:<plan> open claims of a plan of many
--                  o:<job> open plans of a job that holds together
--                  e:<earmark> | v:<eviction plan> state | x:<eviction plan> text
--   P:tasks  hash  <pod uid> a bound task
--   P:due    zset  c:<claim>, v:<eviction plan> by deadline (ms)
--   P:part:N zset  p:<plan>, v:<eviction plan> by revision: the outbox of partition N
--   P:tombs  zset  task ids that ended, by time (ms)
--   P:stream       one entry per call that changed a node or queue; its id is the revision, so a gap proves a trim
-- Nothing of this has a time to live.

local LAYOUT = 1
local TOMB_MS = 3600000
local TOMB_MAX = 500000
local STREAM_MAX = 20000

-- While a library is loaded, nothing but redis.register_function can be reached; the first call sets these.
local floor, max, min, concat, enc, dec, call
local function setup()
  floor, max, min, concat = math.floor, math.max, math.min, table.concat
  enc, dec, call = cjson.encode, cjson.decode, redis.call
end

-- cjson writes 14 digits and no more, so from here on a whole number would be read back as another one, or as none.
-- Sums may come to it (the amounts that they are made of do not), and stay exact in a double up to 2^53.
local LARGE = 1e14

-- `enc` of what may hold large whole numbers.
local function exact(o)
  local kind = type(o)
  if kind == 'number' and (o >= LARGE or o <= -LARGE) then return string.format('%.0f', o) end
  if kind ~= 'table' then return enc(o) end
  local parts = {}
  if #o > 0 then
    for i, v in ipairs(o) do parts[i] = exact(v) end
    return '[' .. concat(parts, ',') .. ']'
  end
  for k, v in pairs(o) do parts[#parts + 1] = enc(tostring(k)) .. ':' .. exact(v) end
  return '{' .. concat(parts, ',') .. '}'
end

local META = {'gen', 'whole', 'term', 'rev', 'stamp', 'seq', 'run', 'layout', 'parts'}

-- Redis' Lua stack bounds unpack; 1000 is far below it and even, so pairs stay together.
local function chunked(cmd, key, flat)
  local n = #flat
  if n == 0 then return end
  if n <= 1000 then
    call(cmd, key, unpack(flat))
    return
  end
  for i = 1, n, 1000 do call(cmd, key, unpack(flat, i, min(i + 999, n))) end
end

-- Reads many fields; false where absent.
local function read(cmd, key, fields)
  local n = #fields
  if n == 0 then return {} end
  if n <= 1000 then return call(cmd, key, unpack(fields)) end
  local out = {}
  for i = 1, n, 1000 do
    for _, v in ipairs(call(cmd, key, unpack(fields, i, min(i + 999, n)))) do out[#out + 1] = v end
  end
  return out
end

-- `extra`: further fields of P:meta that the call needs (epochs).
local function start(keys, extra)
  local p = keys[1]
  local fields = META
  if extra and #extra > 0 then
    fields = {}
    for i, f in ipairs(META) do fields[i] = f end
    for _, f in ipairs(extra) do fields[#fields + 1] = f end
  end
  local v = read('HMGET', p .. ':meta', fields)
  local t = call('TIME')
  local stamp = tonumber(v[5] or 0)
  local u = {
    p = p,
    gen = tonumber(v[1] or 0),
    whole = v[2] == '1',
    term = tonumber(v[3] or 0),
    rev = tonumber(v[4] or 0),
    seq = tonumber(v[6] or 0),
    run = v[7] or '',
    layout = tonumber(v[8] or LAYOUT),
    parts = tonumber(v[9] or 0),
    -- A clock that was set back must not revive deadlines that have passed already.
    now = max(stamp, t[1] * 1000 + floor(t[2] / 1000)),
    -- Base of revisions, in tenths of a millisecond: greater than any that an emptied Redis ever gave out.
    base = t[1] * 10000 + floor(t[2] / 100),
    extra = {},
    nodes = {}, queues = {}, freed = {},
    work = {}, task = {}, due = {}, part = {}, tomb = {}, meta = {},
  }
  if extra then
    for i, f in ipairs(extra) do u.extra[f] = tonumber(v[#META + i] or 0) end
  end
  return u
end

local function stale(u)
  return redis.error_reply('STALE generation ' .. u.gen .. (u.whole and ' whole' or ' rebuilding'))
end

-- Fence of the watcher: an older generation or a leader whose term has passed is refused.
local function watcher(u, gen, term)
  if tonumber(gen) ~= u.gen then return stale(u) end
  term = tonumber(term)
  if term < u.term then return redis.error_reply('STALETERM term ' .. u.term) end
  if term > u.term then
    u.term = term
    u.meta.term = term
  end
  return nil
end

-- Fence of everybody else: commits rest on a whole picture of reality only.
local function ready(u, gen)
  if tonumber(gen) ~= u.gen or not u.whole then return stale(u) end
  return nil
end

-- Records of P:work and P:tasks, read through to what this call has changed already.
local function fetch(u, cache, key, ids)
  local want, seen = {}, {}
  for _, id in ipairs(ids) do
    if cache[id] == nil and not seen[id] then
      seen[id] = true
      want[#want + 1] = id
    end
  end
  local got = read('HMGET', u.p .. key, want)
  for i, id in ipairs(want) do cache[id] = {v = got[i] or nil} end
end

local function work(u, id)
  local w = u.work[id]
  if not w then
    w = {v = call('HGET', u.p .. ':work', id) or nil}
    u.work[id] = w
  end
  if w.o == nil and w.v then w.o = dec(w.v) end
  return w.o
end

local function work_text(u, id)
  local w = u.work[id]
  if not w then
    w = {v = call('HGET', u.p .. ':work', id) or nil}
    u.work[id] = w
  end
  return w.v
end

local function put_text(u, id, text) u.work[id] = {v = text, dirty = true} end
local function put_work(u, id, o) u.work[id] = {v = true, o = o, dirty = true, encode = true} end
local function del_work(u, id) u.work[id] = {dirty = true} end

local function task(u, uid)
  local t = u.task[uid]
  if not t then
    t = {v = call('HGET', u.p .. ':tasks', uid) or nil}
    u.task[uid] = t
  end
  if t.o == nil and t.v then t.o = dec(t.v) end
  return t.o
end

local function put_task(u, uid, o) u.task[uid] = {v = true, o = o, dirty = true, encode = true} end
local function del_task(u, uid) u.task[uid] = {dirty = true} end

local function write_hash(u, cache, key)
  local sets, dels = {}, {}
  for id, w in pairs(cache) do
    if w.dirty then
      if w.v then
        sets[#sets + 1] = id
        sets[#sets + 1] = w.encode and enc(w.o) or w.v
      else
        dels[#dels + 1] = id
      end
    end
  end
  chunked('HSET', u.p .. key, sets)
  chunked('HDEL', u.p .. key, dels)
end

-- `set`: member -> score to add, false to remove.
local function write_zset(key, set)
  local adds, rems = {}, {}
  for m, score in pairs(set) do
    if score then
      adds[#adds + 1] = score
      adds[#adds + 1] = m
    else
      rems[#rems + 1] = m
    end
  end
  chunked('ZADD', key, adds)
  chunked('ZREM', key, rems)
end

local function out_part(u, part, member, score)
  local set = u.part[part]
  if not set then
    set = {}
    u.part[part] = set
  end
  set[member] = score
end

local function tombed(u, ids)
  local out = {}
  if #ids == 0 then return out end
  local got = read('ZMSCORE', u.p .. ':tombs', ids)
  for i, id in ipairs(ids) do
    local at = got[i]
    if at and tonumber(at) > u.now - TOMB_MS then out[id] = true end
  end
  return out
end
