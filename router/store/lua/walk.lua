-- JOIN comes from router.contract.rendezvous; this walks it for one attempt of one request.
-- Writers flush on their own time, so a mover's report may be here before both sides of its match are: it is held
-- under `early` and walked as soon as the table has a row for it. Registered and Prefilled of an attempt that a newer
-- one has replaced are fenced: they could order a second Write.
local function joined(effects, more)
  if effects == '' or more == '' then return effects .. more end
  return effects .. ',' .. more
end

-- Changes state and early of `attempt`; returns: verdict (moved|early|fenced), state before, state after, effects.
local function walk(attempt, arrival)
  local before = attempt.state or 'EMPTY'
  local replaced = attempt.number < attempt.newest
  if replaced and (arrival == 'Registered' or arrival == 'Prefilled') then return 'fenced', before, before, '' end
  local row = JOIN[before .. ' ' .. arrival]
  if not row then
    attempt.early = attempt.early or arrival
    return 'early', before, before, ''
  end
  local after, effects = row[1], row[2]
  local held = JOIN[after .. ' ' .. (attempt.early or '')]
  if held then after, effects = held[1], joined(effects, held[2]) end
  attempt.state = after
  return 'moved', before, after, effects
end
