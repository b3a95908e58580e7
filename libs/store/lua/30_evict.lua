-- Evictions: marks on victims and earmarks for who they yield to.
--
-- A mark (field m of a bound task) names the one eviction plan that counts on the victim's room, so no two plans count
-- it twice. An earmark is created with the mark, empty or holding what is free already, and fills up as room comes free
-- on its node (see `top_up`). Its queue is charged the whole of it at once: the quota is reserved before anybody dies
-- for it; what the victims still hold under the same ancestor is credited in that one check. So a queue can stand over
-- its limit by no more than what marked victims below it still hold, and what its gatherers aim at.
--
-- A plan may have no assignments: its victims are on room that gathers for the job, which goes back to that as they
-- leave. It ends with the gatherer (g.b).
--
-- e:<earmark>  {p = plan, j = job, n = node, q = queue, t = task, r = role, T = charge aimed at, H = charge held,
--               ga = gathers}
-- v:<plan>     {j = job, q = queue, pt = partition, ears = {...}, left = {uid...}, cap = latest deadline}
-- Deadline: cap until the last victim has left, then its departure plus slack, never beyond cap.
--
-- A plan that gathers (gather_s > 0) has no victims: its earmarks need not fit now, only into the empty node, and fill up
-- as room comes free until the cap. Limits of its queue are not asked: what it aims at counts as used at once, so that
-- others of the queue are refused until it starts, which is checked like any commit. A queue has one gatherer: g:<queue> {p = plan, j = job, r = its place in line}; one
-- of a lesser place takes over. One that tells when it starts at the soonest (s) lends what it holds to claims of plans
-- that say that they end before, and any does to claims of plans that yield. Nodes on which another job has earmarks already are refused, so that no two wait for
-- the same devices.

function unlist_earmark(u, n, id)
  local before, kept = n.use.em, {}
  for _, x in ipairs(before or {}) do
    if x ~= id then kept[#kept + 1] = x end
  end
  n.use.em = kept
  n.dirty = true
  u.freed[n.name] = true
  return before
end

local drop_eviction
function drop_eviction(u, id, v)
  for _, uid in ipairs(v.left or {}) do
    local t = task(u, uid)
    if t and t.m == id then
      t.m = nil
      put_task(u, uid, t)
    end
  end
  if v.ga then
    local g = work(u, 'g:' .. v.q)
    if g and g.p == id then
      del_work(u, 'g:' .. v.q)
      local back = g.b and work(u, 'v:' .. g.b)
      if back then drop_eviction(u, g.b, back) end
    end
  end
  del_work(u, 'v:' .. id)
  del_work(u, 'x:' .. id)
  u.due['v:' .. id] = false
  out_part(u, v.pt, 'v:' .. id, false)
end

-- `used`: a commit has turned it into a claim and settled its charges already.
function end_earmark(u, id, e, used)
  if not used then
    local n = node(u, e.n)
    unlist_earmark(u, n, id)
    charge(u, e.n, e.H, -1)
    charge_queue(u, e.q, e.T, -1)
  end
  del_work(u, 'e:' .. id)
  local v = work(u, 'v:' .. e.p)
  if not v then return end
  local ears = {}
  for _, x in ipairs(v.ears or {}) do
    if x ~= id then ears[#ears + 1] = x end
  end
  v.ears = ears
  if #ears == 0 then
    drop_eviction(u, e.p, v)
  else
    put_work(u, 'v:' .. e.p, v)
  end
end

-- A task has left: what counted on it comes due.
local function victim_left(u, uid, t, slack_ms)
  if not t.m then return end
  local v = work(u, 'v:' .. t.m)
  if not v then return end
  local left = {}
  for _, x in ipairs(v.left or {}) do
    if x ~= uid then left[#left + 1] = x end
  end
  v.left = left
  put_work(u, 'v:' .. t.m, v)
  if #left == 0 then u.due['v:' .. t.m] = min(v.cap, u.now + slack_ms) end
end

-- How much of the plan's victims stands under a queue: leaves with them, so it may be counted as free by their plan.
local function credit_of(victims)
  return function(path, back)
    local g, c, m = 0, 0, 0
    for _, t in ipairs(victims) do
      if t.q == path or string.sub(t.q or '', 1, #path + 1) == path .. '/' then
        g = g + milli_of(t.c)
        c = c + (t.c.cpu or 0)
        m = m + (t.c.mem or 0)
        if back and t.c.md then add_models(back, t.c, milli_of(t.c), 1) end
      end
    end
    return g, c, m
  end
end

local function lesser(a, b)
  for i = 1, 4 do
    if a[i] ~= b[i] then return a[i] < b[i] end
  end
  return false
end

-- Whether these charges fit into their nodes with nobody there; a refusal by claim if not.
local function gathers(u, plan)
  local bare, refused = {}, {}
  for _, a in ipairs(plan.assignments) do
    local n = node(u, a.node)
    local b = bare[a.node]
    if not b then
      b = {spec = n.spec, use = {cpu = 0, mem = 0, pods = 0, blind = n.use.blind, gpus = {}}}
      bare[a.node] = b
      for _, x in ipairs(earmarks(u, n)) do
        if x.e.j ~= plan.job then refused[a.claim] = 'earmarked' end
      end
    end
    local no = short(b, a.charge)
    if no then refused[a.claim] = no end
    b.use.cpu = b.use.cpu + (a.charge.cpu or 0)
    b.use.mem = b.use.mem + (a.charge.mem or 0)
    b.use.pods = b.use.pods + 1
    for _, g in ipairs(a.charge.gpus or {}) do
      for i = #b.use.gpus + 1, g[1] + 1 do b.use.gpus[i] = {0, 0} end
      local d = b.use.gpus[g[1] + 1]
      d[1], d[2] = d[1] + g[2], d[2] + g[3]
    end
  end
  return refused
end

-- The queue's gatherer gives way to one of a lesser place, or to another plan of its own job.
local function succeed(u, plan)
  local g = work(u, 'g:' .. plan.queue)
  local v = g and work(u, 'v:' .. g.p)
  if not v then return nil end
  if g.j ~= plan.job and not lesser(plan.place or {1, 0, 0, ''}, g.r) then return 'gathering' end
  local ears = {}
  for i, e in ipairs(v.ears or {}) do ears[i] = e end
  for _, ear in ipairs(ears) do
    local e = work(u, 'e:' .. ear)
    if e then end_earmark(u, ear, e) end
  end
  return nil
end

local function commit_eviction(u, plan, text, tombs, cap_ms, slack_ms)
  local res = {plan = plan.id}
  local why = plan_fence(u, plan) or epoch_fence(u, plan)
  if why then
    res.refused = refuse_all(plan, why)
    return res
  end
  local known = work(u, 'v:' .. plan.id)
  if known then
    if #(known.ears or {}) > 0 then res.taken = known.ears end
    return res
  end
  local victims, refused = {}, {}
  for _, v in ipairs(plan.victims) do
    local t = task(u, v.uid)
    if not t or t.n ~= v.node then
      refused[v.uid] = 'victim-gone'
    elseif t.m then
      refused[v.uid] = 'victim-marked'
    elseif t.j and t.j ~= '' and #open_plans(u, t.j) > 0 then
      refused[v.uid] = 'victim-starting'
    else
      victims[#victims + 1] = t
      if t.q and t.q ~= '' then prefetch(u, {}, {[t.q] = true}) end
    end
  end
  local milli, cpu, mem, charges = 0, 0, 0, {}
  for i, a in ipairs(plan.assignments) do
    local n = node(u, a.node)
    if tombs[a.task] then
      refused[a.claim] = 'tombstone'
    elseif work_text(u, 't:' .. a.task) or task(u, a.task) then
      refused[a.claim] = 'held'
    elseif not n.spec or n.spec.gone then
      refused[a.claim] = 'node-gone'
    elseif n.spec.s ~= a.node_spec then
      refused[a.claim] = 'node-changed'
    end
    mark_models(n, a.charge)
    charges[i] = a.charge
    milli = milli + milli_of(a.charge)
    cpu = cpu + (a.charge.cpu or 0)
    mem = mem + (a.charge.mem or 0)
  end
  if next(refused) then
    res.refused = refused
    return res
  end
  local gather = (plan.gather_s or 0) > 0
  if #plan.assignments == 0 then
    local g = work(u, 'g:' .. plan.queue)
    if not g or g.j ~= plan.job then
      for _, v in ipairs(plan.victims) do refused[v.uid] = 'expired' end
      res.refused = refused
      return res
    end
    g.b = plan.id
    put_work(u, 'g:' .. plan.queue, g)
  end
  if gather then
    refused = gathers(u, plan)
    if not next(refused) then
      local no = succeed(u, plan)
      if no then refused = refuse_all(plan, no) end
    end
    if next(refused) then
      res.refused = refused
      return res
    end
  end
  -- Does it fit once these victims, and nobody else, have left?
  local tried = {}
  for _, t in ipairs(victims) do charge(u, t.n, t.c, -1) end
  for _, a in ipairs(gather and {} or plan.assignments) do
    local n = node(u, a.node)
    local no = short(n, a.charge)
    if no == 'capacity' and n.use.em and others_earmarked(u, n, a.charge) then no = 'earmarked' end
    if no then
      refused[a.claim] = no
      break
    end
    charge(u, a.node, a.charge, 1)
    tried[#tried + 1] = a
  end
  for _, a in ipairs(tried) do charge(u, a.node, a.charge, -1) end
  for _, t in ipairs(victims) do charge(u, t.n, t.c, 1) end
  if not gather and not next(refused) then
    local at = quota(u, plan.queue, charges, milli, cpu, mem, credit_of(victims))
    if at then
      res.queue = at
      for _, a in ipairs(plan.assignments) do refused[a.claim] = 'quota' end
    end
  end
  if next(refused) then
    res.refused = refused
    return res
  end
  local cap = u.now + (gather and plan.gather_s * 1000 or cap_ms)
  local left, ears = {}, {}
  for i, v in ipairs(plan.victims) do
    local t = victims[i]
    t.m = plan.id
    put_task(u, v.uid, t)
    left[i] = v.uid
  end
  for i, a in ipairs(plan.assignments) do
    local H = {cpu = 0, mem = 0, pods = 0}
    if a.charge.gpus then
      H.gpus = {}
      for k, g in ipairs(a.charge.gpus) do H.gpus[k] = {g[1], 0, 0} end
    end
    put_work(u, 'e:' .. a.claim, {p = plan.id, j = plan.job, n = a.node, q = plan.queue, t = a.task, r = a.role,
      T = a.charge, H = H, ga = gather or nil,
      s = gather and (plan.start_s or 0) > 0 and u.now + plan.start_s * 1000 or nil})
    ears[i] = a.claim
    local n = node(u, a.node)
    n.use.em = n.use.em or {}
    n.use.em[#n.use.em + 1] = a.claim
    u.freed[a.node] = true
    charge_queue(u, plan.queue, a.charge, 1)
  end
  put_work(u, 'v:' .. plan.id, {j = plan.job, q = plan.queue, pt = plan.partition, ears = ears, left = left, cap = cap,
    ga = gather or nil})
  if gather then put_work(u, 'g:' .. plan.queue, {p = plan.id, j = plan.job, r = plan.place or {1, 0, 0, ''}}) end
  put_text(u, 'x:' .. plan.id, text)
  u.due['v:' .. plan.id] = (gather or #left > 0) and cap or min(cap, u.now + slack_ms)
  out_part(u, plan.partition, 'v:' .. plan.id, u.rev + 1)
  settle(u)
  if #ears > 0 then res.taken = ears end
  return res
end

-- commit_evictions: ARGV cap_ms, slack_ms, plan... -> {results, nodes, queues}
local function commit_evictions(keys, args)
  local plans, extra = decode_plans(args, 3)
  local u = start(keys, extra)
  local tombs, names, paths = read_plans(u, plans, true)
  local results = {}
  for i, plan in ipairs(plans) do
    for _, a in ipairs(plan.assignments) do a.charge = a.charge or {} end
    results[i] = enc(commit_eviction(u, plan, args[i + 2], tombs, tonumber(args[1]), tonumber(args[2])))
  end
  flush(u)
  local nodes, queues = fresh_reply(u, names, paths)
  return {'[' .. concat(results, ',') .. ']', nodes, queues}
end

-- begin_evict: ARGV generation of the plan, plan id, [uid...] -> refusals by victim uid, '' for the plan itself
local function begin_evict(keys, args)
  local u = start(keys)
  local fence = plan_fence(u, {generation = tonumber(args[1])})
  if fence then return enc({[''] = fence}) end
  local id, refused = args[2], {}
  local v = work(u, 'v:' .. id)
  if not v then return enc({[''] = 'expired'}) end
  local uids = dec(args[3])
  fetch(u, u.task, ':tasks', uids)
  for _, uid in ipairs(uids) do
    local t = task(u, uid)
    if not t then
      refused[uid] = 'victim-gone'
    elseif t.m ~= id then
      refused[uid] = t.m and 'victim-marked' or 'unknown'
    end
  end
  return next(refused) and enc(refused) or '{}'
end

-- unmark: ARGV generation, plan, [uid...]. Earmarks that still lack room on a node of such a victim relied on it, and
-- so may those of a queue that is over its limit: that the victim's part of it leaves was counted on.
local function unmark(keys, args)
  local u = start(keys)
  local err = ready(u, args[1])
  if err then return err end
  local id, off, nodes = args[2], {}, {}
  local v = work(u, 'v:' .. id)
  if not v then return 1 end
  for _, uid in ipairs(dec(args[3])) do
    local t = task(u, uid)
    if t and t.m == id then
      t.m = nil
      put_task(u, uid, t)
      off[uid] = true
      nodes[t.n] = true
    end
  end
  local left = {}
  for _, uid in ipairs(v.left or {}) do
    if not off[uid] then left[#left + 1] = uid end
  end
  v.left = left
  put_work(u, 'v:' .. id, v)
  local ears = {}
  for i, e in ipairs(v.ears or {}) do ears[i] = e end
  for _, ear in ipairs(ears) do
    local e = work(u, 'e:' .. ear)
    if e and ((nodes[e.n] and lacking(e)) or (next(off) and over_limit(u, e.q))) then end_earmark(u, ear, e) end
  end
  flush(u)
  return 1
end

-- drop: ARGV generation, [id...], job. Planned claims and earmarks of a job that no longer wants them.
local function drop(keys, args)
  local job = args[3]
  local err, u, list = free_claims(keys, args, function(c) return c.s == 'p' and c.j == job end)
  if err then return err end
  local ids = {}
  for i, id in ipairs(list) do ids[i] = 'e:' .. id end
  fetch(u, u.work, ':work', ids)
  for _, id in ipairs(list) do
    local e = work(u, 'e:' .. id)
    if e and e.j == job then end_earmark(u, id, e) end
  end
  flush(u)
  return 1
end

-- expire: ARGV generation, limit, rearm_ms -> {state, claim, task, plan text}...
local function expire(keys, args)
  local u = start(keys)
  local err = ready(u, args[1])
  if err then return err end
  local out = {}
  local due = call('ZRANGEBYSCORE', u.p .. ':due', '-inf', string.format('%.0f', u.now), 'LIMIT', 0, tonumber(args[2]))
  local ids = {}
  for i, m in ipairs(due) do ids[i] = m end
  read_claims(u, ids, true)
  for _, m in ipairs(due) do
    local id = string.sub(m, 3)
    local o = work(u, m)
    if not o then
      u.due[m] = false
    elseif string.sub(m, 1, 2) == 'c:' then
      local text = work_text(u, 'p:' .. o.p) or ''
      if o.s == 'p' then
        end_claim(u, id, o)
        out[#out + 1] = {'planned', id, o.t, text}
      else
        u.due[m] = u.now + tonumber(args[3])
        out[#out + 1] = {'writing', id, o.t, text}
      end
    else
      local ears = {}
      for i, e in ipairs(o.ears or {}) do ears[i] = e end
      for _, ear in ipairs(ears) do
        local e = work(u, 'e:' .. ear)
        if e then
          end_earmark(u, ear, e)
          out[#out + 1] = {'earmark', ear, e.t, ''}
        end
      end
      if work(u, m) then drop_eviction(u, id, o) end
    end
  end
  flush(u)
  return out
end
