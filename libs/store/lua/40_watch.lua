-- The watcher: reality. It is charged whether it fits or not; what does not fit shows as a disputed device or as a node
-- over its capacity, both closed to commits until enough has left.
--
-- <uid> of P:tasks  {n = node, q = queue, j = job, c = charge, v = version, s = sequence at bind, k = claim it came by,
--                    t = task id where the binder created the pod, m = eviction plan that counts on its leaving}

-- Versions exceed a Lua double: compare by length, then text.
local function newer(a, b)
  if #a ~= #b then return #a > #b end
  return a > b
end

-- hello: ARGV run, layout -> state. Another run id than the data set's: it may have lost its last writes.
local function hello(keys, args)
  local u = start(keys)
  if u.layout > tonumber(args[2]) then return redis.error_reply('LAYOUT ' .. u.layout) end
  if u.whole and (u.run ~= args[1] or u.layout < tonumber(args[2])) then
    u.whole = false
    u.meta.whole = '0'
  end
  flush(u)
  return {u.gen, u.whole and 1 or 0, u.term}
end

local function state(keys)
  local u = start(keys)
  return {u.gen, u.whole and 1 or 0, u.term}
end

-- begin_rebuild: ARGV term, run, layout. Deleting a dozen large keys is left to Redis' own thread by UNLINK. Tombstones,
-- epochs and the stream stay: what ended has ended, and revisions only grow. The jump in revisions makes every reader
-- of the stream ask for a dump.
local function begin_rebuild(keys, args)
  local u = start(keys)
  local term = tonumber(args[1])
  if term < u.term then return redis.error_reply('STALETERM term ' .. u.term) end
  local p = u.p
  call('UNLINK', p .. ':nodes', p .. ':work', p .. ':tasks', p .. ':due')
  for part = 0, u.parts do call('UNLINK', p .. ':part:' .. string.format('%d', part)) end
  -- Greater than any generation of a data set that was lost with its counter: milliseconds, because one may be lost
  -- within the second in which it was begun.
  u.gen = max(u.gen + 1, floor(u.base / 10))
  u.rev = max(u.rev, u.base) + 1000
  u.term = term
  u.meta = {gen = u.gen, whole = '0', term = term, rev = u.rev, run = args[2], layout = tonumber(args[3]), seq = u.seq}
  call('XADD', p .. ':stream', 'MAXLEN', '~', STREAM_MAX, string.format('%.0f-1', u.rev), 'n', '[]', 'q', '[]')
  flush(u)
  return {u.gen, 0, u.term}
end

-- whole: ARGV generation, term, run
local function whole(keys, args)
  local u = start(keys)
  local err = watcher(u, args[1], args[2])
  if err then return err end
  -- The server changed while it was being loaded: what was loaded may be lost again.
  if u.run ~= args[3] then return stale(u) end
  u.whole = true
  u.meta.whole = '1'
  flush(u)
  return {u.gen, 1, u.term}
end

local function mark(keys)
  return call('HINCRBY', keys[1] .. ':meta', 'seq', 1)
end

-- Models of a node's devices as told: one name, or one per index; nil where none is known.
local function same_models(a, b)
  if type(a) ~= 'table' or type(b) ~= 'table' then return a == b end
  if #a ~= #b then return false end
  for i, model in ipairs(a) do
    if model ~= b[i] then return false end
  end
  return true
end

-- nodes_seen: ARGV generation, term, [[name, uid, version, spec, cpu, mem, pods, closed, [[index, mib]...], models]...]
local function nodes_seen(keys, args)
  local u = start(keys)
  local err = watcher(u, args[1], args[2])
  if err then return err end
  local list, names = dec(args[3]), {}
  for _, x in ipairs(list) do names[x[1]] = true end
  prefetch(u, names, {})
  for _, x in ipairs(list) do
    local n = node(u, x[1])
    local s = n.spec
    local drop
    if s then
      if s.gone then
        -- The same leader never takes a departure back; the next one may have seen that it was none.
        drop = not newer(x[3], s.v) and u.term <= s.t
      else
        drop = newer(s.v, x[3])
      end
    end
    if not drop then
      local g = {}
      for _, d in ipairs(x[9]) do
        for i = #g + 1, d[1] do g[i] = -1 end
        g[d[1] + 1] = d[2]
      end
      local d = x[10]
      if d == '' then d = nil end
      local new = {v = x[3], u = x[2], s = x[4], c = x[5], m = x[6], p = x[7], x = x[8] == 1 or nil, g = g, t = u.term,
        d = d}
      if not s or s.gone or s.v ~= new.v or s.s ~= new.s or s.c ~= new.c or s.m ~= new.m or s.p ~= new.p
        or s.x ~= new.x or #s.g ~= #g or not same_models(s.d, d) then
        n.spec = new
        n.respec = true
        n.dirty = true
        u.freed[n.name] = true
      end
    end
  end
  flush(u)
  return 1
end

-- nodes_gone: ARGV generation, term, [name...]. Zero room from now on; what is charged stays charged.
local function nodes_gone(keys, args)
  local u = start(keys)
  local err = watcher(u, args[1], args[2])
  if err then return err end
  local names = {}
  local list = dec(args[3])
  for _, name in ipairs(list) do names[name] = true end
  prefetch(u, names, {})
  for _, name in ipairs(list) do
    local n = node(u, name)
    if n.spec and not n.spec.gone then
      n.spec.gone = true
      n.spec.t = u.term
      n.respec = true
      n.dirty = true
    end
  end
  flush(u)
  return 1
end

-- The claim that a pod came by, if the claim really is this pod's: an annotation can be forged, so the claim named must
-- be for this uid, or for a pod to be created by the same job on the same node.
local function claim_of(u, x)
  local id = x.claim
  if id and id ~= '' then
    local c = work(u, 'c:' .. id)
    if c and (c.t == x.uid or (c.b and c.j == (x.job or '') and c.n == x.node)) then return id, c end
  end
  -- Bound by whatever means: a pod is bound once, so no write under another claim for this uid can land any more.
  id = work_text(u, 't:' .. x.uid)
  if id and string.sub(id, 1, 1) ~= '=' then
    local c = work(u, 'c:' .. id)
    if c then return id, c end
  end
  return nil
end

-- Whether it is the same queue at another place: its name is its own, wherever in the tree it stands.
local function moved(old, new)
  return old ~= new and old ~= '' and new ~= '' and string.match(old, '[^/]*$') == string.match(new, '[^/]*$')
end

-- tasks_seen: ARGV generation, term, [TaskSeen...] -> uids on disputed devices
local function tasks_seen(keys, args)
  local u = start(keys)
  local err = watcher(u, args[1], args[2])
  if err then return err end
  local list = dec(args[3])
  local names, paths, ids, uids = {}, {}, {}, {}
  for i, x in ipairs(list) do
    x.queue = x.queue or ''
    x.charge = x.charge or {}
    names[x.node] = true
    if x.queue ~= '' then paths[x.queue] = true end
    uids[i] = x.uid
    ids[#ids + 1] = 't:' .. x.uid
    if x.claim then ids[#ids + 1] = 'c:' .. x.claim end
  end
  read_claims(u, ids)
  fetch(u, u.task, ':tasks', uids)
  prefetch(u, names, paths)
  local tombs = tombed(u, uids)
  local suspects = {}
  for _, x in ipairs(list) do
    local uid = x.uid
    if not tombs[uid] then
      local t = task(u, uid)
      if t then
        -- The first charge seen bound wins (an annotation edited later changes nothing), but for what the API server
        -- itself lets grow in place: CPU and memory. What a queue holds goes along when the queue moves in the tree.
        if moved(t.q, x.queue) and not newer(t.v, x.version) then
          charge_queue(u, t.q, t.c, -1)
          charge_queue(u, x.queue, t.c, 1)
          t.q = x.queue
          put_task(u, uid, t)
        end
        if newer(x.version, t.v) then
          if (x.charge.cpu or 0) ~= (t.c.cpu or 0) or (x.charge.mem or 0) ~= (t.c.mem or 0) then
            charge(u, t.n, t.c, -1)
            charge_queue(u, t.q, t.c, -1)
            t.c.cpu = x.charge.cpu
            t.c.mem = x.charge.mem
            charge(u, t.n, t.c, 1)
            charge_queue(u, t.q, t.c, 1)
          end
          t.v = x.version
          put_task(u, uid, t)
        end
      else
        local rec = {n = x.node, q = x.queue, j = x.job or '', c = x.charge, v = x.version, s = u.seq + 1}
        local id, c = claim_of(u, x)
        if id then
          local same = c.n == x.node and c.q == x.queue and (c.c.cpu or 0) == (x.charge.cpu or 0)
            and (c.c.mem or 0) == (x.charge.mem or 0) and (c.c.blind or 0) == (x.charge.blind or 0)
            and same_gpus(c.c.gpus, x.charge.gpus)
          if same then
            x.charge.md = c.c.md
          else
            charge(u, c.n, c.c, -1)
            charge_queue(u, c.q, c.c, -1)
            mark_models(node(u, x.node), x.charge)
            charge(u, x.node, x.charge, 1)
            charge_queue(u, x.queue, x.charge, 1)
          end
          bind_claim(u, id, c, uid, rec)
        else
          mark_models(node(u, x.node), x.charge)
          charge(u, x.node, x.charge, 1)
          charge_queue(u, x.queue, x.charge, 1)
          put_task(u, uid, rec)
        end
      end
      if x.charge.gpus and #x.charge.gpus > 0 then suspects[#suspects + 1] = x end
    end
  end
  flush(u)
  local out = {}
  for _, x in ipairs(suspects) do
    local n = node(u, x.node)
    for _, g in ipairs(x.charge.gpus) do
      local d = n.use.gpus[g[1] + 1]
      if d and over(d, n.spec and n.spec.g[g[1] + 1]) then
        out[#out + 1] = x.uid
        break
      end
    end
  end
  return out
end

-- Frees bound tasks and whatever claim was open for them, and remembers all their ids as ended.
local function end_tasks(u, list, slack_ms, still)
  local ids = {}
  for i, uid in ipairs(list) do ids[i] = 't:' .. uid end
  fetch(u, u.task, ':tasks', list)
  fetch(u, u.work, ':work', ids)
  local names, paths = {}, {}
  for _, uid in ipairs(list) do
    local t = task(u, uid)
    if t then
      names[t.n] = true
      if t.q ~= '' then paths[t.q] = true end
    end
  end
  prefetch(u, names, paths)
  local freed = {}
  for _, uid in ipairs(list) do
    local t = task(u, uid)
    if not still or (t and still(t)) then
      if t then
        charge(u, t.n, t.c, -1)
        charge_queue(u, t.q, t.c, -1)
        victim_left(u, uid, t, slack_ms)
        del_task(u, uid)
        if t.t then
          u.tomb[t.t] = u.now
          if work_text(u, 't:' .. t.t) == '=' .. uid then del_work(u, 't:' .. t.t) end
        end
      end
      local id = work_text(u, 't:' .. uid)
      if id and string.sub(id, 1, 1) ~= '=' then
        local c = work(u, 'c:' .. id)
        if c then end_claim(u, id, c) end
      end
      u.tomb[uid] = u.now
      freed[#freed + 1] = uid
    end
  end
  local tombs = u.p .. ':tombs'
  local old = call('ZRANGEBYSCORE', tombs, '-inf', string.format('%.0f', u.now - TOMB_MS), 'LIMIT', 0, 512)
  if #old > 0 then chunked('ZREM', tombs, old) end
  if next(u.tomb) and call('ZCARD', tombs) > TOMB_MAX then call('ZREMRANGEBYRANK', tombs, 0, 511) end
  flush(u)
  return freed
end

-- tasks_gone: ARGV generation, term, slack_ms, [uid...]
local function tasks_gone(keys, args)
  local u = start(keys)
  local err = watcher(u, args[1], args[2])
  if err then return err end
  end_tasks(u, dec(args[4]), tonumber(args[3]))
  return 1
end

-- sweep_page: ARGV cursor, mark, count -> {cursor, uids bound before the mark}
local function sweep_page(keys, args)
  local page = call('HSCAN', keys[1] .. ':tasks', args[1], 'COUNT', args[3])
  local out, limit = {}, tonumber(args[2])
  for i = 1, #page[2], 2 do
    local s = tonumber(string.match(page[2][i + 1], '"s":(%d+)'))
    if not s or dec(page[2][i + 1]).s <= limit then out[#out + 1] = page[2][i] end
  end
  return {page[1], out}
end

-- sweep_free: ARGV generation, term, slack_ms, mark, [uid...] -> uids freed. Looks at the mark again: a task may have
-- gone and come since the page was read.
local function sweep_free(keys, args)
  local u = start(keys)
  local err = watcher(u, args[1], args[2])
  if err then return err end
  local limit = tonumber(args[4])
  return end_tasks(u, dec(args[5]), tonumber(args[3]), function(t) return t.s <= limit end)
end

-- queues_seen: ARGV generation, term, [[path, version, gpu, cpu, mem, {model: milli}]...] (-1, absent: no limit),
-- [gone path...]
local function queues_seen(keys, args)
  local u = start(keys)
  local err = watcher(u, args[1], args[2])
  if err then return err end
  local function limit(x) return x >= 0 and x or nil end
  local list, gone, paths = dec(args[3]), dec(args[4]), {}
  for _, x in ipairs(list) do paths[x[1]] = true end
  for _, path in ipairs(gone) do paths[path] = true end
  prefetch(u, {}, paths)
  for _, x in ipairs(list) do
    local q = queue(u, x[1])
    local use = q.use
    if not (use.known and newer(use.ver, x[2])) then
      use.known = 1
      use.ver = x[2]
      use.lg, use.lc, use.lm, use.lx = limit(x[3]), limit(x[4]), limit(x[5]), x[6]
      q.dirty = true
    end
  end
  for _, path in ipairs(gone) do
    local q = queue(u, path)
    local use = q.use
    if use.known then
      use.known, use.ver, use.lg, use.lc, use.lm, use.lx = nil, nil, nil, nil, nil, nil
      q.dirty = true
    end
  end
  flush(u)
  return 1
end
