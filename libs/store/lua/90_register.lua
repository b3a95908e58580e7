-- Names carry the library's own name, so that two versions can be loaded side by side. Functions that only free room may
-- run when Redis is out of memory: they are the cure.
local function register(name, f, flags)
  local function first(keys, args)
    if not call then setup() end
    return f(keys, args)
  end
  redis.register_function{function_name = '@LIBRARY@_' .. name, callback = first, flags = flags or {}}
end
local FREES, READS = {'allow-oom'}, {'no-writes'}

register('hello', hello, FREES)
register('state', state, READS)
register('begin_rebuild', begin_rebuild, FREES)
register('whole', whole)
register('mark', mark)
register('nodes_seen', nodes_seen)
register('nodes_gone', nodes_gone)
register('tasks_seen', tasks_seen)
register('tasks_gone', tasks_gone, FREES)
register('sweep_page', sweep_page, READS)
register('sweep_free', sweep_free, FREES)
register('queues_seen', queues_seen)
register('take', take)
register('commit', commit)
register('commit_evictions', commit_evictions)
register('drop', drop, FREES)
register('begin', begin)
register('confirm', confirm)
register('release', release, FREES)
register('writing', writing, READS)
register('begin_evict', begin_evict, READS)
register('unmark', unmark, FREES)
register('expire', expire, FREES)
register('dump', dump, READS)
register('position', position, READS)
register('holders', holders, READS)
