-- Claims: planned -> writing -> bound. A claim holds its charge from `commit` on, whatever state it moves through.
--
-- c:<claim>  {s = 'p'|'w', t = task, n = node, q = queue, j = job, p = plan, c = charge, k = claims of its plan,
--             pt = partition, b = binder creates the pod, g = its job holds together}
-- t:<task>   the open claim of a task, or '=<uid>' while a pod that the binder created for it is bound
-- o:<job>    of a job that holds together: its plans with open claims, with spaces in between. Members of such a job
--            that are bound already are no victims: the others would come up without them.

local function close_plan(u, plan, part)
  del_work(u, 'p:' .. plan)
  out_part(u, part, 'p:' .. plan, false)
end

local function open_plans(u, job)
  local open = {}
  for id in string.gmatch(work_text(u, 'o:' .. job) or '', '%S+') do
    if work_text(u, 'p:' .. id) then open[#open + 1] = id end
  end
  return open
end

local function note_open(u, job, plan)
  local open = open_plans(u, job)
  for _, id in ipairs(open) do
    if id == plan then return end
  end
  open[#open + 1] = plan
  put_text(u, 'o:' .. job, concat(open, ' '))
end

-- After a plan of the job was closed.
local function note_closed(u, job)
  if not work_text(u, 'o:' .. job) then return end
  local open = open_plans(u, job)
  if #open > 0 then
    put_text(u, 'o:' .. job, concat(open, ' '))
  else
    del_work(u, 'o:' .. job)
  end
end

-- The claim is over; what it held stays charged where `keep` says that a bound task takes it over.
local function end_claim(u, id, c, keep)
  del_work(u, 'c:' .. id)
  if work_text(u, 't:' .. c.t) == id then del_work(u, 't:' .. c.t) end
  u.due['c:' .. id] = false
  if c.k <= 1 then
    close_plan(u, c.p, c.pt)
    if c.g then note_closed(u, c.j) end
  else
    local left = tonumber(work_text(u, 'k:' .. c.p) or 1) - 1
    if left <= 0 then
      del_work(u, 'k:' .. c.p)
      close_plan(u, c.p, c.pt)
      if c.g then note_closed(u, c.j) end
    else
      put_text(u, 'k:' .. c.p, tostring(left))
    end
  end
  if not keep then
    charge(u, c.n, c.c, -1)
    charge_queue(u, c.q, c.c, -1)
  end
end

-- Claims and all that ending them will touch, in three reads.
local function read_claims(u, keys, room)
  fetch(u, u.work, ':work', keys)
  local more, names, paths = {}, {}, {}
  for _, key in ipairs(keys) do
    local c = string.sub(key, 1, 2) == 'c:' and work(u, key)
    if c then
      more[#more + 1] = 't:' .. c.t
      more[#more + 1] = 'p:' .. c.p
      if c.k > 1 then more[#more + 1] = 'k:' .. c.p end
      names[c.n] = true
      if c.q and c.q ~= '' then paths[c.q] = true end
    end
  end
  fetch(u, u.work, ':work', more)
  if room then prefetch(u, names, paths) end
end

local function refuse_all(plan, why)
  local out = {}
  for _, a in ipairs(plan.assignments) do out[a.claim] = why end
  return out
end

-- Whether the ledger takes plans of this generation and epoch at all.
local function plan_fence(u, plan)
  if plan.generation ~= u.gen then return 'generation' end
  if not u.whole then return 'rebuilding' end
  return nil
end

local function epoch_fence(u, plan)
  if plan.epoch ~= (u.extra['e' .. string.format('%d', plan.partition)] or 0) then return 'epoch' end
  return nil
end

local function same_gpus(a, b)
  a, b = a or {}, b or {}
  if #a ~= #b then return false end
  for i, g in ipairs(a) do
    if g[1] ~= b[i][1] or g[2] ~= b[i][2] or g[3] ~= b[i][3] then return false end
  end
  return true
end

-- The earmark of `job` on a node that an assignment uses up: the one for the very same devices, else any.
local function own_earmark(u, n, job, c)
  local any
  for _, x in ipairs(earmarks(u, n)) do
    if x.e.j == job then
      if same_gpus(x.e.T.gpus, c.gpus) then return x end
      any = any or x
    end
  end
  return any
end

local function others_earmarked(u, n, c)
  local held = {}
  for _, x in ipairs(earmarks(u, n)) do
    charge(u, n.name, x.e.H, -1)
    held[#held + 1] = x.e.H
  end
  local fits = #held > 0 and not short(n, c)
  for _, h in ipairs(held) do charge(u, n.name, h, 1) end
  return fits
end

local unlist_earmark, end_earmark -- in 30_evict.lua

-- What a gatherer holds goes to a claim or comes back. `g` is a charge, of each device with its place in H.
local function shift(u, n, id, e, g, sign)
  local H = e.H
  H.cpu, H.mem, H.pods = (H.cpu or 0) + sign * g.cpu, (H.mem or 0) + sign * g.mem, (H.pods or 0) + sign * g.pods
  for _, d in ipairs(g.gpus) do
    local h = H.gpus[d[4]]
    h[2], h[3] = h[2] + sign * d[2], h[3] + sign * d[3]
  end
  charge(u, n.name, g, sign)
  put_work(u, 'e:' .. id, e)
end

-- Gatherers on the node that start only after the plan's tasks have ended lend what the charge lacks, and any gatherer
-- does to tasks that yield to it; nobody else does. When the claim or its task ends, the room goes back by `top_up`.
local function lend(u, n, c, plan)
  local s, use, lent = n.spec, n.use, {}
  for _, x in ipairs(earmarks(u, n)) do
    local e = x.e
    local ends = plan.ends_s or 0
    if e.j ~= plan.job and ((plan.yields and e.ga) or (ends > 0 and e.s and u.now + ends * 1000 <= e.s)) then
      local H = e.H
      local g = {
        cpu = min(H.cpu or 0, max(0, use.cpu + (c.cpu or 0) - s.c)),
        mem = min(H.mem or 0, max(0, use.mem + (c.mem or 0) - s.m)),
        pods = min(H.pods or 0, max(0, use.pods + 1 - s.p)),
        gpus = {},
      }
      for _, want in ipairs(c.gpus or {}) do
        local d = use.gpus[want[1] + 1] or {0, 0}
        for i, h in ipairs(H.gpus or {}) do
          if h[1] == want[1] then
            local milli = min(h[2], max(0, d[1] + want[2] - 1000))
            local mib = min(h[3], max(0, d[2] + want[3] - (s.g[want[1] + 1] or 0)))
            if milli > 0 or mib > 0 then g.gpus[#g.gpus + 1] = {want[1], milli, mib, i} end
          end
        end
      end
      shift(u, n, x.id, e, g, -1)
      lent[#lent + 1] = {x.id, e, g}
    end
  end
  return lent
end

local function take_back(u, n, lent)
  for i = #(lent or {}), 1, -1 do shift(u, n, lent[i][1], lent[i][2], lent[i][3], 1) end
end

-- Tries one assignment on the state in memory. Returns a refusal, or nil and an undo for what was charged.
local function try(u, plan, a, tombs)
  local id, t = a.claim, a.task
  local have = work(u, 'c:' .. id)
  if have then return nil, nil, true end
  if tombs[t] then return 'tombstone' end
  if work_text(u, 't:' .. t) or task(u, t) then return 'held' end
  local n = node(u, a.node)
  local s = n.spec
  if not s or s.gone then return 'node-gone' end
  if s.s ~= a.node_spec then return 'node-changed' end
  local c = a.charge
  local own = n.use.em and own_earmark(u, n, plan.job, c)
  if own then
    charge(u, a.node, own.e.H, -1)
    charge_queue(u, own.e.q, own.e.T, -1)
  end
  mark_models(n, c)
  local why = short(n, c)
  local lent
  if why == 'capacity' and n.use.em and (plan.yields or (plan.ends_s or 0) > 0) then
    lent = lend(u, n, c, plan)
    why = short(n, c)
  end
  local at
  if not why then
    at = quota(u, plan.queue, {c}, milli_of(c), c.cpu or 0, c.mem or 0)
    if at then why = 'quota' end
  end
  if why then
    take_back(u, n, lent)
    if why == 'capacity' and n.use.em and others_earmarked(u, n, c) then why = 'earmarked' end
    if own then
      charge(u, a.node, own.e.H, 1)
      charge_queue(u, own.e.q, own.e.T, 1)
    end
    return why, nil, nil, at
  end
  charge(u, a.node, c, 1)
  charge_queue(u, plan.queue, c, 1)
  local ids = own and unlist_earmark(u, n, own.id)
  put_text(u, 't:' .. t, id)
  return nil, function(commit)
    if commit then
      if own then end_earmark(u, own.id, own.e, true) end
      return
    end
    del_work(u, 't:' .. t)
    charge(u, a.node, c, -1)
    charge_queue(u, plan.queue, c, -1)
    take_back(u, n, lent)
    if own then
      n.use.em = ids
      charge(u, a.node, own.e.H, 1)
      charge_queue(u, own.e.q, own.e.T, 1)
    end
  end
end

local function commit_plan(u, plan, text, tombs, planned_ms)
  local res = {plan = plan.id}
  local why = plan_fence(u, plan) or epoch_fence(u, plan)
  if why then
    res.refused = refuse_all(plan, why)
    return res
  end
  local taken, refused, fresh, undos = {}, {}, {}, {}
  for _, a in ipairs(plan.assignments) do
    local no, undo, again, at = try(u, plan, a, tombs)
    if no then
      refused[a.claim] = no
      res.queue = at or res.queue
      if plan.gang then
        for i = #undos, 1, -1 do undos[i](false) end
        res.refused = refused
        return res
      end
    else
      taken[#taken + 1] = a.claim
      if not again then fresh[#fresh + 1] = a end
      undos[#undos + 1] = undo
    end
  end
  for _, undo in ipairs(undos) do undo(true) end
  local k = #fresh
  if k > 0 then
    local before = work_text(u, 'p:' .. plan.id) and tonumber(work_text(u, 'k:' .. plan.id) or 1) or 0
    k = k + before
    put_text(u, 'p:' .. plan.id, text)
    if plan.together then note_open(u, plan.job, plan.id) end
    if k > 1 then put_text(u, 'k:' .. plan.id, tostring(k)) end
    for _, a in ipairs(fresh) do
      put_work(u, 'c:' .. a.claim, {s = 'p', t = a.task, n = a.node, q = plan.queue, j = plan.job, p = plan.id,
        c = a.charge, k = k, pt = plan.partition, b = a.create, g = plan.together})
      u.due['c:' .. a.claim] = u.now + planned_ms
    end
    -- A claim of this plan that a first, half-taken commit left behind counts through k: from now on.
    if before == 1 then
      for _, a in ipairs(plan.assignments) do
        local c = work(u, 'c:' .. a.claim)
        if c and c.k < k then
          c.k = k
          put_work(u, 'c:' .. a.claim, c)
        end
      end
    end
    out_part(u, plan.partition, 'p:' .. plan.id, u.rev + 1)
  end
  settle(u)
  if #taken > 0 then res.taken = taken end
  if next(refused) then res.refused = refused end
  return res
end

-- Everything a batch of plans will look at, in five reads.
local function read_plans(u, plans, victims)
  local names, paths, ids, tasks, seen = {}, {}, {}, {}, {}
  for _, plan in ipairs(plans) do
    if plan.queue ~= '' then paths[plan.queue] = true end
    for _, a in ipairs(plan.assignments) do
      names[a.node] = true
      ids[#ids + 1] = 'c:' .. a.claim
      ids[#ids + 1] = 't:' .. a.task
      tasks[#tasks + 1] = a.task
    end
    ids[#ids + 1] = 'p:' .. plan.id
    if plan.together then ids[#ids + 1] = 'o:' .. plan.job end
    if #plan.assignments > 1 then ids[#ids + 1] = 'k:' .. plan.id end
    for _, v in ipairs(victims and plan.victims or {}) do
      tasks[#tasks + 1] = v.uid
      names[v.node] = true
    end
  end
  fetch(u, u.work, ':work', ids)
  fetch(u, u.task, ':tasks', tasks)
  prefetch(u, names, paths)
  return tombed(u, tasks), names, paths
end

-- Present use of everything the plans named, as text: it was encoded for the stream already.
local function fresh_reply(u, names, paths)
  local nodes, queues, seen = {}, {}, {}
  for name in pairs(names) do
    local n = u.nodes[name]
    if n and n.uv then nodes[#nodes + 1] = n.uv end
  end
  for path in pairs(paths) do
    for _, a in ipairs(ancestors(path)) do
      local q = u.queues[a]
      if q and q.v and not seen[a] then
        seen[a] = true
        queues[#queues + 1] = q.v
      end
    end
  end
  return '[' .. concat(nodes, ',') .. ']', '[' .. concat(queues, ',') .. ']'
end

local function decode_plans(args, from)
  local plans, extra, seen = {}, {}, {}
  for i = from, #args do
    local plan = dec(args[i])
    plan.queue = plan.queue or ''
    plan.victims = plan.victims or {}
    plans[#plans + 1] = plan
    local f = 'e' .. string.format('%d', plan.partition)
    if not seen[f] then
      seen[f] = true
      extra[#extra + 1] = f
    end
  end
  return plans, extra
end

-- commit: ARGV planned_ms, plan...  -> {results, nodes, queues}
local function commit(keys, args)
  local plans, extra = decode_plans(args, 2)
  local u = start(keys, extra)
  local tombs, names, paths = read_plans(u, plans)
  local results = {}
  for i, plan in ipairs(plans) do
    for _, a in ipairs(plan.assignments) do a.charge = a.charge or {} end
    results[i] = enc(commit_plan(u, plan, args[i + 1], tombs, tonumber(args[1])))
  end
  flush(u)
  local nodes, queues = fresh_reply(u, names, paths)
  return {'[' .. concat(results, ',') .. ']', nodes, queues}
end

-- begin: ARGV writing_ms, then {id, gang, generation, [[claim, task, node, spec]...]} per plan -> refusals by claim id,
-- per plan. A claim that is not refused is writing when this returns. Of a gang that has not begun, one dead claim
-- refuses all. The node's spec is compared once more: the watcher tells a cordon here before it tells it on a topic, so
-- a binder that stood still, and may read the plan before the newer fact, cannot bind to a cordoned node.
local function begin(keys, args)
  local u = start(keys)
  local plans, ids, tasks, names = dec(args[2]), {}, {}, {}
  for _, plan in ipairs(plans) do
    for _, a in ipairs(plan[4]) do
      ids[#ids + 1] = 'c:' .. a[1]
      tasks[#tasks + 1] = a[2]
      names[a[3]] = true
    end
  end
  fetch(u, u.work, ':work', ids)
  prefetch(u, names, {})
  local lost, gone = {}, {}
  for j, key in ipairs(ids) do
    if not work(u, key) then
      lost[#lost + 1] = 't:' .. tasks[j]
      gone[#gone + 1] = tasks[j]
    end
  end
  fetch(u, u.work, ':work', lost)
  fetch(u, u.task, ':tasks', gone)
  local tombs = tombed(u, tasks)
  local out = {}
  for i, plan in ipairs(plans) do
    local id, gang, refused = plan[1], plan[2] == 1, {}
    local blocked, begun
    local ready_now = {}
    local fence = plan_fence(u, {generation = plan[3]})
    for _, a in ipairs(plan[4]) do
      local claim, why = a[1], fence
      local c
      if not why then
        c = work(u, 'c:' .. claim)
        if not c then
          -- Bound under this very claim: done, so no reason for the rest of its gang to stop.
          local holder = work_text(u, 't:' .. a[2])
          local uid = holder and string.match(holder, '^=(.*)$') or a[2]
          local t = task(u, uid)
          why = t and 'held' or (tombs[a[2]] and 'tombstone' or 'unknown')
          if t and t.k == claim then begun = true else blocked = true end
        elseif c.p ~= id then
          why = 'unknown'
          blocked = true
        elseif c.s == 'w' then
          begun = true
        else
          local n = node(u, c.n)
          why = (tombs[a[2]] and 'tombstone') or overfilled(n, c.c)
          if not why and a[4] and n.spec.s ~= a[4] then why = 'node-changed' end
          if why then blocked = true else ready_now[#ready_now + 1] = {claim, c} end
        end
      end
      if why then refused[claim] = why end
    end
    if gang and blocked and not begun then
      for _, r in ipairs(ready_now) do refused[r[1]] = 'gang' end
    else
      for _, r in ipairs(ready_now) do
        r[2].s = 'w'
        put_work(u, 'c:' .. r[1], r[2])
        u.due['c:' .. r[1]] = u.now + tonumber(args[1])
      end
    end
    out[i] = next(refused) and enc(refused) or '{}'
  end
  flush(u)
  return '[' .. concat(out, ',') .. ']'
end

-- A claim becomes a bound task; the charge goes from one holder to the next.
local function bind_claim(u, id, c, uid, rec)
  end_claim(u, id, c, true)
  rec.s = u.seq + 1
  rec.k = id
  if uid ~= c.t then
    rec.t = c.t
    put_text(u, 't:' .. c.t, '=' .. uid)
  end
  put_task(u, uid, rec)
end

-- confirm: ARGV generation, [claim, uid]...
local function confirm(keys, args)
  local u = start(keys)
  local err = ready(u, args[1])
  if err then return err end
  local pairs_, ids, uids = dec(args[2]), {}, {}
  for i, x in ipairs(pairs_) do
    ids[i] = 'c:' .. x[1]
    uids[i] = x[2]
  end
  read_claims(u, ids)
  fetch(u, u.task, ':tasks', uids)
  local tombs = tombed(u, uids)
  local names = {}
  for _, x in ipairs(pairs_) do
    local id, uid = x[1], x[2]
    local c = work(u, 'c:' .. id)
    if c then
      if tombs[uid] or task(u, uid) then
        -- It ended, or was seen under another claim, before its own binder heard of it.
        end_claim(u, id, c)
        if c.t ~= uid and tombs[uid] then u.tomb[c.t] = u.now end
      else
        bind_claim(u, id, c, uid, {n = c.n, q = c.q, j = c.j, c = c.c, v = ''})
      end
    end
  end
  flush(u)
  return 1
end

local function free_claims(keys, args, allowed)
  local u = start(keys)
  local err = ready(u, args[1])
  if err then return err, u end
  local ids = {}
  local list = dec(args[2])
  for i, id in ipairs(list) do ids[i] = 'c:' .. id end
  read_claims(u, ids, true)
  for _, id in ipairs(list) do
    local c = work(u, 'c:' .. id)
    if c and allowed(c) then end_claim(u, id, c) end
  end
  return nil, u, list
end

-- release: ARGV generation, [claim...]. The caller vouches that no write under these claims can land any more.
local function release(keys, args)
  local err, u = free_claims(keys, args, function() return true end)
  if err then return err end
  flush(u)
  return 1
end

-- take: ARGV generation, partition -> {epoch, {text, open planned, open writing}..., {'v', text}...}
local function take(keys, args)
  local part = args[2]
  local field = 'e' .. part
  local u = start(keys, {field})
  local err = ready(u, args[1])
  if err then return err end
  local epoch = u.extra[field] + 1
  u.meta[field] = epoch
  if tonumber(part) > u.parts then u.meta.parts = tonumber(part) end
  local out = {epoch}
  for _, m in ipairs(call('ZRANGE', u.p .. ':part:' .. part, 0, -1)) do
    local id = string.sub(m, 3)
    if string.sub(m, 1, 2) == 'p:' then
      local text = work_text(u, m)
      if text then
        local planned, writing, ids = {}, {}, {}
        local plan = dec(text)
        for i, a in ipairs(plan.assignments) do ids[i] = 'c:' .. a.claim end
        fetch(u, u.work, ':work', ids)
        for _, a in ipairs(plan.assignments) do
          local c = work(u, 'c:' .. a.claim)
          if c then
            local list = c.s == 'w' and writing or planned
            list[#list + 1] = a.claim
          end
        end
        out[#out + 1] = {'p', text, planned, writing}
      end
    else
      local text = work_text(u, 'x:' .. id)
      if text then out[#out + 1] = {'v', text} end
    end
  end
  flush(u)
  return out
end

-- writing: ARGV generation, claim
local function writing(keys, args)
  local u = start(keys)
  local err = ready(u, args[1])
  if err then return err end
  local asked, out = dec(args[2]), {}
  local names = {}
  for i, claim in ipairs(asked) do names[i] = 'c:' .. claim end
  fetch(u, u.work, ':work', names)
  for _, claim in ipairs(asked) do
    local c = work(u, 'c:' .. claim)
    if c and c.s == 'w' then out[#out + 1] = claim end
  end
  return out
end
