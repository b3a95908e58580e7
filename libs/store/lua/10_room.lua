-- Room of nodes and queues. Usage changes only through `charge` and `charge_queue`, each by exact integers.

local function node(u, name)
  local n = u.nodes[name]
  if not n then
    local v = call('HMGET', u.p .. ':nodes', 's:' .. name, 'u:' .. name)
    n = {name = name, sv = v[1], uv = v[2]}
    u.nodes[name] = n
  end
  if not n.use then
    n.spec = n.sv and dec(n.sv) or nil
    n.known = n.uv and true or false
    local use = n.uv and dec(n.uv) or {}
    use.cpu = use.cpu or 0
    use.mem = use.mem or 0
    use.pods = use.pods or 0
    use.blind = use.blind or 0
    use.gpus = use.gpus or {}
    n.use = use
  end
  return n
end

local function ancestors(path)
  local out = {}
  while path and path ~= '' do
    out[#out + 1] = path
    path = string.match(path, '^(.*)/[^/]*$')
  end
  return out
end

local function queue(u, path)
  local q = u.queues[path]
  if not q then
    q = {path = path, v = call('HGET', u.p .. ':nodes', 'q:' .. path)}
    u.queues[path] = q
  end
  if not q.use then
    local use = q.v and dec(q.v) or {}
    use.gpu_milli = use.gpu_milli or 0
    use.cpu = use.cpu or 0
    use.mem = use.mem or 0
    if use.gpu_milli == 0 then use.models = nil end
    q.use = use
  end
  return q
end

-- One HMGET for every node and queue that a call will touch.
local function prefetch(u, names, paths)
  local fields, what = {}, {}
  for name in pairs(names) do
    if not u.nodes[name] then
      fields[#fields + 1] = 's:' .. name
      fields[#fields + 1] = 'u:' .. name
      what[#what + 1] = {name = name, at = #fields - 1}
    end
  end
  local seen = {}
  for path in pairs(paths) do
    for _, a in ipairs(ancestors(path)) do
      if not seen[a] and not u.queues[a] then
        seen[a] = true
        fields[#fields + 1] = 'q:' .. a
        what[#what + 1] = {path = a, at = #fields}
      end
    end
  end
  local got = read('HMGET', u.p .. ':nodes', fields)
  for _, w in ipairs(what) do
    if w.name then
      u.nodes[w.name] = {name = w.name, sv = got[w.at], uv = got[w.at + 1]}
    else
      u.queues[w.path] = {path = w.path, v = got[w.at]}
    end
  end
end

local function milli_of(c)
  local sum = 1000 * (c.blind or 0)
  for _, g in ipairs(c.gpus or {}) do sum = sum + g[2] end
  return sum
end

-- `c.pods` is there on earmarks only, which hold a pod's slot as soon as one is free.
local function charge(u, name, c, sign)
  local n = node(u, name)
  local use = n.use
  use.cpu = use.cpu + sign * (c.cpu or 0)
  use.mem = use.mem + sign * (c.mem or 0)
  use.pods = use.pods + sign * (c.pods or 1)
  use.blind = use.blind + sign * (c.blind or 0)
  if c.gpus then
    local gpus = use.gpus
    for _, g in ipairs(c.gpus) do
      for i = #gpus + 1, g[1] + 1 do gpus[i] = {0, 0} end
      local d = gpus[g[1] + 1]
      d[1] = d[1] + sign * g[2]
      d[2] = d[2] + sign * g[3]
    end
  end
  n.dirty = true
  if sign < 0 then u.freed[name] = true end
end

-- Which models a charge is of, kept in it as `md` so that it ends as it began whatever the node says by then: one name
-- where all devices of the node are alike, else one per device. Without it, nothing is known and nothing is counted.
local function mark_models(n, c)
  local d = n.spec and n.spec.d
  local gpus = c.gpus
  c.md = nil
  if not d then return end
  if type(d) == 'string' then
    if (gpus and #gpus > 0) or (c.blind or 0) > 0 then c.md = d end
  elseif gpus and #gpus > 0 then
    local md = {}
    for i, g in ipairs(gpus) do md[i] = d[g[1] + 1] or '' end
    c.md = md
  end
end

-- Adds what a charge takes of each model to `sums`.
local function add_models(sums, c, milli, sign)
  local md = c.md
  if type(md) == 'string' then
    sums[md] = (sums[md] or 0) + sign * milli
    return
  end
  for i, model in ipairs(md) do
    if model ~= '' then sums[model] = (sums[model] or 0) + sign * c.gpus[i][2] end
  end
end

-- A release that knows of no models may have ended what this one began: what is left over is no more than all GPUs that
-- the queue uses, so it is gone at the latest when they are.
local function charge_models(use, c, milli, sign)
  local sums = use.models or {}
  add_models(sums, c, milli, sign)
  for model, left in pairs(sums) do
    if left > use.gpu_milli then left = use.gpu_milli end
    sums[model] = left > 0 and left or nil
  end
  use.models = next(sums) and sums or nil
end

local function charge_queue(u, path, c, sign)
  if not path or path == '' then return end
  local milli = milli_of(c)
  for _, a in ipairs(ancestors(path)) do
    local q = queue(u, a)
    q.use.gpu_milli = q.use.gpu_milli + sign * milli
    q.use.cpu = q.use.cpu + sign * (c.cpu or 0)
    q.use.mem = q.use.mem + sign * (c.mem or 0)
    if c.md then charge_models(q.use, c, milli, sign) end
    q.dirty = true
  end
end

local function over(d, mib) return d[1] > 1000 or (mib and d[2] > mib) end

-- Why a charge does not fit on a node, nil if it fits. Only what the charge asks for is compared: a node that reality
-- has overfilled in CPU still takes a task that asks for none.
local function short(n, c)
  local s, use = n.spec, n.use
  if not s or s.gone then return 'node-gone' end
  local cpu, mem = c.cpu or 0, c.mem or 0
  if cpu < 0 or mem < 0 then return 'capacity' end
  if (c.blind or 0) ~= 0 then return 'blind' end
  if cpu > 0 and use.cpu + cpu > s.c then return 'capacity' end
  if mem > 0 and use.mem + mem > s.m then return 'capacity' end
  if use.pods + 1 > s.p then return 'capacity' end
  local gpus = c.gpus
  if gpus and #gpus > 0 then
    if s.x or use.blind > 0 then return 'blind' end
    local seen = {}
    for _, g in ipairs(gpus) do
      local i = g[1] + 1
      local mib = s.g[i]
      if not mib or mib < 0 or seen[i] or g[2] < 0 or g[3] < 0 then return 'capacity' end
      seen[i] = true
      local d = use.gpus[i]
      if d then
        if over(d, mib) then return 'disputed' end
        if d[1] + g[2] > 1000 or d[2] + g[3] > mib then return 'capacity' end
      elseif g[2] > 1000 or g[3] > mib then
        return 'capacity'
      end
    end
  end
  return nil
end

-- Whether reality has overfilled what a standing claim relies on.
local function overfilled(n, c)
  local s, use = n.spec, n.use
  if not s or s.gone then return 'node-gone' end
  if ((c.cpu or 0) > 0 and use.cpu > s.c) or ((c.mem or 0) > 0 and use.mem > s.m) or use.pods > s.p then
    return 'capacity'
  end
  if c.gpus and #c.gpus > 0 then
    if use.blind > 0 then return 'blind' end
    for _, g in ipairs(c.gpus) do
      local d, mib = use.gpus[g[1] + 1], s.g[g[1] + 1]
      if not mib or mib < 0 then return 'capacity' end
      if d and over(d, mib) then return 'disputed' end
    end
  end
  return nil
end

-- Whether a limit of one model would be exceeded.
local function short_of_model(use, charges, back)
  local wanted = {}
  for _, c in ipairs(charges) do
    if c.md then add_models(wanted, c, milli_of(c), 1) end
  end
  for model, milli in pairs(wanted) do
    local limit = use.lx[model]
    if limit and milli > 0 and (use.models and use.models[model] or 0) + milli - (back[model] or 0) > limit then
      return true
    end
  end
  return false
end

-- The first queue, from the leaf up, whose limit would be exceeded by `charges`, which sum to milli, cpu, mem.
-- `credit(path, back)` is room that leaves with victims; it fills `back` with what that is by model.
local function quota(u, path, charges, milli, cpu, mem, credit)
  for _, a in ipairs(ancestors(path)) do
    local use = queue(u, a).use
    local cg, cc, cm = 0, 0, 0
    local back = use.lx and {}
    if credit then cg, cc, cm = credit(a, back) end
    if milli > 0 and use.lg and use.gpu_milli + milli - cg > use.lg then return a end
    if cpu > 0 and use.lc and use.cpu + cpu - cc > use.lc then return a end
    if mem > 0 and use.lm and use.mem + mem - cm > use.lm then return a end
    if back and milli > 0 and short_of_model(use, charges, back) then return a end
  end
  return nil
end

-- Whether a queue or one above it stands over a limit.
local function over_limit(u, path)
  for _, a in ipairs(ancestors(path)) do
    local use = queue(u, a).use
    if (use.lg and use.gpu_milli > use.lg) or (use.lc and use.cpu > use.lc) or (use.lm and use.mem > use.lm) then
      return true
    end
    for model, limit in pairs(use.lx or {}) do
      if (use.models and use.models[model] or 0) > limit then return true end
    end
  end
  return false
end

-- Earmarks of a node, oldest first.
local function earmarks(u, n)
  local out = {}
  local ids = n.use.em
  if not ids then return out end
  local keys = {}
  for i, id in ipairs(ids) do keys[i] = 'e:' .. id end
  fetch(u, u.work, ':work', keys)
  for _, id in ipairs(ids) do
    local e = work(u, 'e:' .. id)
    if e then out[#out + 1] = {id = id, e = e} end
  end
  return out
end

-- An earmark is a charge that fills up. `T` is what it is for, `H` what it holds of that already. Whatever room comes
-- free on its node goes to the oldest earmark that lacks it, in the call that freed it, so nobody else ever sees it;
-- and while something is lacking, nothing of that kind is free. So the node is never over its capacity on account of
-- an earmark, and the sum of holders is the node's use at every moment.
local function top_up(u, n)
  local s, use = n.spec, n.use
  if not use.em then return end
  local open = s and not s.gone
  local shown = {}
  for _, x in ipairs(earmarks(u, n)) do
    local e = x.e
    local T, H = e.T, e.H
    if open then
      local add = {cpu = 0, mem = 0, pods = 0, gpus = {}}
      add.cpu = max(0, min((T.cpu or 0) - (H.cpu or 0), s.c - use.cpu))
      add.mem = max(0, min((T.mem or 0) - (H.mem or 0), s.m - use.mem))
      add.pods = max(0, min(1 - (H.pods or 0), s.p - use.pods))
      local grew = add.cpu > 0 or add.mem > 0 or add.pods > 0
      if T.gpus and use.blind == 0 and not s.x then
        for i, g in ipairs(T.gpus) do
          local d = use.gpus[g[1] + 1] or {0, 0}
          local h = H.gpus[i]
          local mib = s.g[g[1] + 1] or 0
          local milli = max(0, min(g[2] - h[2], 1000 - d[1]))
          local part = max(0, min(g[3] - h[3], mib - d[2]))
          if milli > 0 or part > 0 then
            add.gpus[#add.gpus + 1] = {g[1], milli, part}
            h[2] = h[2] + milli
            h[3] = h[3] + part
            grew = true
          end
        end
      end
      if grew then
        H.cpu = (H.cpu or 0) + add.cpu
        H.mem = (H.mem or 0) + add.mem
        H.pods = (H.pods or 0) + add.pods
        charge(u, n.name, add, 1)
        put_work(u, 'e:' .. x.id, e)
      end
    end
    shown[e.j] = shown[e.j] or {}
    local list = shown[e.j]
    list[#list + 1] = H
  end
  use.earmarked = next(shown) and shown or nil
  n.dirty = true
end

local function lacking(e)
  local T, H = e.T, e.H
  local r = {cpu = (T.cpu or 0) - (H.cpu or 0), mem = (T.mem or 0) - (H.mem or 0), pods = 0}
  local any = r.cpu > 0 or r.mem > 0 or (H.pods or 0) < 1
  for i, g in ipairs(T.gpus or {}) do
    local h = H.gpus[i]
    if g[2] > h[2] or g[3] > h[3] then
      r.gpus = r.gpus or {}
      r.gpus[#r.gpus + 1] = {g[1], g[2] - h[2], g[3] - h[3]}
      if type(T.md) == 'table' then
        r.md = r.md or {}
        r.md[#r.gpus] = T.md[i]
      else
        r.md = T.md
      end
      any = true
    end
  end
  return any and r or nil
end

local function settle(u)
  for name in pairs(u.freed) do
    local n = node(u, name)
    if n.use.em then top_up(u, n) end
  end
  u.freed = {}
end

-- Empty tables are left out everywhere: cjson cannot tell an empty list from an empty object.
local function node_text(n, rev)
  local s, use = n.spec, n.use
  local o = {node = n.name, revision = rev}
  if use.cpu ~= 0 then o.cpu = use.cpu end
  if use.mem ~= 0 then o.mem = use.mem end
  if use.pods ~= 0 then o.pods = use.pods end
  if use.blind ~= 0 then o.blind = use.blind end
  local gpus = use.gpus
  local large = use.cpu >= LARGE or use.mem >= LARGE
  if s then
    for i = #gpus + 1, #s.g do gpus[i] = {0, 0} end
  end
  if #gpus > 0 then
    o.gpus = gpus
    local disputed = {}
    for i, d in ipairs(gpus) do
      large = large or d[2] >= LARGE
      if over(d, s and s.g[i]) then disputed[#disputed + 1] = i - 1 end
    end
    if #disputed > 0 then o.disputed = disputed end
  end
  if use.em and #use.em > 0 then
    o.em = use.em
    o.earmarked = use.earmarked
  end
  if s and s.gone then o.gone = true end
  return large and exact(o) or enc(o)
end

local function node_empty(n)
  local use = n.use
  return use.pods == 0 and use.cpu == 0 and use.mem == 0 and use.blind == 0 and not (use.em and #use.em > 0)
end

local function queue_text(q, rev)
  local use = q.use
  use.path = q.path
  use.revision = rev
  -- Of GPUs a queue has fewer of each model than of all.
  local large = use.cpu >= LARGE or use.mem >= LARGE or use.gpu_milli >= LARGE
  return large and exact(use) or enc(use)
end

local function flush(u)
  settle(u)
  local sets, dels, nodes, queues = {}, {}, {}, {}
  local rev = u.rev + 1
  for name, n in pairs(u.nodes) do
    if n.dirty then
      local text = node_text(n, rev)
      n.uv = text
      nodes[#nodes + 1] = text
      if node_empty(n) and (not n.spec or n.spec.gone) then
        dels[#dels + 1] = 'u:' .. name
        dels[#dels + 1] = 's:' .. name
      else
        sets[#sets + 1] = 'u:' .. name
        sets[#sets + 1] = text
        if n.respec then
          sets[#sets + 1] = 's:' .. name
          sets[#sets + 1] = enc(n.spec)
        end
      end
    end
  end
  for path, q in pairs(u.queues) do
    if q.dirty then
      local text = queue_text(q, rev)
      q.v = text
      queues[#queues + 1] = text
      local use = q.use
      if use.gpu_milli == 0 and use.cpu == 0 and use.mem == 0 and not use.known then
        dels[#dels + 1] = 'q:' .. path
      else
        sets[#sets + 1] = 'q:' .. path
        sets[#sets + 1] = text
      end
    end
  end
  chunked('HSET', u.p .. ':nodes', sets)
  chunked('HDEL', u.p .. ':nodes', dels)
  local changed = false
  if #nodes > 0 or #queues > 0 then
    u.rev = rev
    u.meta.rev = rev
    call('XADD', u.p .. ':stream', 'MAXLEN', '~', STREAM_MAX, string.format('%.0f-1', rev),
      'n', '[' .. concat(nodes, ',') .. ']', 'q', '[' .. concat(queues, ',') .. ']')
  end
  write_hash(u, u.work, ':work')
  write_hash(u, u.task, ':tasks')
  write_zset(u.p .. ':due', u.due)
  for part, set in pairs(u.part) do write_zset(u.p .. ':part:' .. part, set) end
  if next(u.tomb) then write_zset(u.p .. ':tombs', u.tomb) end
  local meta = {}
  for f, v in pairs(u.meta) do
    meta[#meta + 1] = f
    meta[#meta + 1] = type(v) == 'number' and string.format('%.0f', v) or v
    changed = true
  end
  if changed then
    meta[#meta + 1] = 'stamp'
    meta[#meta + 1] = string.format('%.0f', u.now)
    call('HSET', u.p .. ':meta', unpack(meta))
  end
end
