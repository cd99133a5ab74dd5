-- For wrk: one-token chat completions. `-- distinct`: every request has words of its own, so no rendered prompt and no
-- prefix is found again.
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
local body = '{"model":"null","messages":[{"role":"user","content":"Say hello%s."}],"max_tokens":1}'
wrk.body = body:format("")

local threads = 0
function setup(thread)
  thread:set("number", threads)
  threads = threads + 1
end

local distinct, count = false, 0
function init(arguments)
  distinct = arguments[1] == "distinct"
end

function request()
  if not distinct then return wrk.format() end
  count = count + 1
  return wrk.format(nil, nil, nil, body:format(" " .. number .. " and " .. count))
end
