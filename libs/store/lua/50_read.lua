-- Reading all of it, a page at a time. A page may repeat what another has (HSCAN's promise): the higher revision wins.

-- dump: ARGV kind ('u' nodes, 'q' queues), cursor, count -> {revision, cursor, '[use...]'}
local function dump(keys, args)
  local u = start(keys)
  local page = call('HSCAN', u.p .. ':nodes', args[2], 'MATCH', args[1] .. ':*', 'COUNT', args[3])
  local out = {}
  for i = 2, #page[2], 2 do out[#out + 1] = page[2][i] end
  return {string.format('%.0f', u.rev), page[1], '[' .. concat(out, ',') .. ']'}
end

-- position: -> {generation, revision}
local function position(keys)
  local v = call('HMGET', keys[1] .. ':meta', 'gen', 'rev')
  return {v[1] or '0', v[2] or '0'}
end

local function holder(id, state, node_, c, o, task_)
  local models
  if c.md then
    models = {}
    add_models(models, c, milli_of(c), 1)
    models = next(models) and models or nil  -- an empty table may be written as a list
  end
  return enc({id = id, state = state, node = node_, charge = next(c) and c or {cpu = 0}, job = o.j, queue = o.q,
    task = task_, models = models})
end

-- holders: ARGV kind ('c' claims, 'e' earmarks, 't' tasks), cursor, count -> {cursor, '[holder...]'}
local function holders(keys, args)
  local u = start(keys)
  local kind = args[1]
  local out, page = {}, nil
  if kind == 't' then
    page = call('HSCAN', u.p .. ':tasks', args[2], 'COUNT', args[3])
  else
    page = call('HSCAN', u.p .. ':work', args[2], 'MATCH', kind .. ':*', 'COUNT', args[3])
  end
  for i = 1, #page[2], 2 do
    local id, o = page[2][i], dec(page[2][i + 1])
    if kind == 't' then
      out[#out + 1] = holder(id, 'bound', o.n, o.c, o, o.t or id)
    elseif kind == 'c' then
      out[#out + 1] = holder(string.sub(id, 3), o.s == 'w' and 'writing' or 'planned', o.n, o.c, o, o.t)
    else
      o.H.md = o.T.md
      out[#out + 1] = holder(string.sub(id, 3), 'earmark', o.n, o.H, o, o.t)
      -- Reserved in the queue, not yet free on the node: no node is charged for it.
      local r = lacking(o)
      if r then out[#out + 1] = holder(string.sub(id, 3), 'pending', '', r, o, o.t) end
    end
  end
  return {page[1], '[' .. concat(out, ',') .. ']'}
end
