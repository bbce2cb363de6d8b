-- Decides the checks of one request against the states of their keys, and charges all or none.
--
-- KEYS[i] is the key of a check; no two checks have the same. ARGV[1] is the mode and the latest
-- time of the call, ARGV[1 + i] the numbers of a check and what a gateway replays: `call.rs`
-- packs both, and reads the reply. Times are microseconds since 1970 by this server's clock.
--
-- A window is stored as its admissions, oldest first, with what describes them at the end, so that
-- one write adds to both. Of each admission there are 8 bytes: its stamp in units, and how much was
-- admitted up to and with it, both modulo 2^32. Stamps increase strictly: a stamp
-- names its admission. A window that counts in slots has one entry for each slot, stamped with the
-- slot's end. The number of an entry in its window, plus how many were cut before it, is its
-- sequence number.
--
-- Invariants:
-- 1. A call that is late, refused or forgotten charges nothing; no state is charged before all
--    checks are decided.
-- 2. A decision reads a bounded number of bytes and a charge writes a bounded number, but for one
--    copy of a window in each of its horizons, a replay, a change of the algorithm, and 28 bytes
--    for each gateway that has slots of a key.
-- 3. The time of a key never runs backwards: it is not before that of its newest charge.
--
-- A check visits the later ones before it charges: its numbers stay in local variables until then.

local clock = redis.call('TIME')
local time = clock[1] * 1000000 + clock[2]

local call, pack, unpack, sub = redis.call, struct.pack, struct.unpack, string.sub
local floor, ceil = math.floor, math.ceil
local mode, not_after = unpack('>Bd', ARGV[1])
if not_after > 0 and time > not_after then
  return pack('>Bd', 3, time)
end

-- The bytes after the entries of a window, and those that one read brings: of 64 entries, too.
local TRAILER, TAIL = 58, 570
-- A window with more entries loses those that have left it, whatever other plans may count.
local ENTRIES_MAX = 131072
-- The units of the oldest entry's age, and of a horizon, at most: stamps are modulo 2^32.
local AGE_MAX, HORIZON_MAX = 3.75 * 2^30, 3.5 * 2^30

local visit, rarely

-- The nth entry of a window of n: its stamp in units, and the sum up to and with it.
local function entry(key, tail, n, nth)
  local at = #tail - TRAILER + (nth - n) * 8
  if at < 0 then
    tail, at = call('GETRANGE', key, nth * 8, nth * 8 + 7), 0
  end
  return unpack('>I4I4', tail, at + 1)
end

-- Of a window of n entries, the first that is less than `age` units older than the newest, whose
-- stamp is `newest`: its number, the sum before it, its stamp, its sum. It is near the number
-- `hint`, most probably.
local function seek(key, tail, n, base, newest, age, hint)
  local text, at, low, high = tail, #tail - TRAILER + (hint - n) * 8, hint, n
  if at < 8 and (hint > 0 or at < 0) then
    local from = hint > 0 and hint - 1 or 0
    text, at = call('GETRANGE', key, from * 8, from * 8 + 135), (hint - from) * 8
  end
  local before, stamp, sum = base
  if hint > 0 then
    stamp, before = unpack('>I4I4', text, at - 7)
    if (newest - stamp) % 2^32 < age then
      -- It is before the hint: the window has become longer.
      low, high = 0, hint - 1
    end
  end
  if high == n then
    for nth = hint, (n < hint + 16 and n or hint + 16) - 1 do
      stamp, sum = unpack('>I4I4', text, at + 1)
      if (newest - stamp) % 2^32 < age then
        return nth, before, stamp, sum
      end
      before, at, low = sum, at + 8, nth + 1
    end
  end
  while low < high do
    local middle = floor((low + high) / 2)
    if (newest - entry(key, tail, n, middle)) % 2^32 < age then
      high = middle
    else
      low = middle + 1
    end
  end
  before, stamp, sum = base, newest, base
  if low > 0 then
    stamp, before = entry(key, tail, n, low - 1)
  end
  if low < n then
    stamp, sum = entry(key, tail, n, low)
  end
  return low, before, stamp, sum
end

-- Decides the ith check and all later ones, and charges them if `outcome` stays 0: 1 is refused, 2
-- forgotten. A window admits `requests` in any `span`; of them `count` were admitted at `claimed`
-- for the gateway that calls.
function visit(i, outcome)
  local key, text = KEYS[i], ARGV[i + 1]
  if not key then
    return outcome, ''
  end
  local kind, enforced, cost, requests, count, span, grain, unit, sequence, claimed, horizon, token,
    form, replayed = unpack('>BBI4I4I4dddddddc6', text)
  if kind ~= 1 then
    return rarely(kind)(i, outcome, key, enforced, cost, requests, count, span, grain, unit,
      sequence, claimed, horizon, token, form, replayed)
  end
  local tail = call('GETRANGE', key, '-570', '-1')
  replayed = replayed <= #text and replayed
  if replayed or tail ~= '' and sub(tail, -6) ~= form then
    tail, unit, form = rarely(kind)(i, key, tail, form, grain, unit, horizon, token, replayed)
  end
  local length, now = #tail, time
  local low, total, charged, dropped, newest, oldest, kept, n, first, base
  if length == 0 then
    low, total, dropped, newest, kept, n, first, base = 0, 0, 0, 0, 0, 0, 0, 0
  else
    low, total, charged, dropped, newest, oldest, kept, n, first, base =
      unpack('>I4I4dddddI4I4I4', tail, length - TRAILER - 7)
    if length ~= n * 8 + TRAILER and (length ~= TAIL or n <= 64) or first > n then
      error('WEIR unreadable ' .. key, 0)
    end
    if charged > now then
      now = charged
    end
    if newest + horizon <= now then
      total, dropped, kept, n, first, base = 0, 0, 0, 0, 0, 0
    end
  end

  local forgot, before, stamp, used = 0, total, low, 0
  if count > 0 and claimed + horizon > now then
    -- The claimed entry has its number unless others were added before it.
    local nth, rounded, found, own, earlier = sequence - dropped, ceil(claimed / unit)
    if nth >= 0 and nth < n then
      found, own = entry(key, tail, n, nth)
    end
    if found == rounded % 2^32 then
      earlier = base
      if nth > 0 then
        found, earlier = entry(key, tail, n, nth - 1)
      end
    elseif rounded * unit <= newest then
      nth, earlier, found, own = seek(key, tail, n, base, low, newest / unit - rounded + 1, n)
      earlier = found == rounded % 2^32 and nth < n and earlier
    end
    if not earlier or (own - earlier) % 2^32 < count then
      forgot, outcome = 1, 2
    end
  end
  if n > 0 and first == 0 and oldest + span > now then
    -- None has left it.
    before, used = base, (total - base) % 2^32
  elseif n > 0 and newest + span > now then
    first, before, stamp = seek(key, tail, n, base, low, (newest + span - now) / unit, first)
    used = (total - before) % 2^32
  else
    first = n
  end

  local decision, retry_at, full_at = 0, 0, used > 0 and newest + span or now
  local surplus = used + cost - requests
  if surplus > 0 then
    if cost > requests then
      decision = 2
    else
      decision = 1
      local from, to, sum = first, n - 1
      retry_at, sum = entry(key, tail, n, first)
      if (sum - before) % 2^32 < surplus then
        from = first + 1
        while from < to do
          local middle = floor((from + to) / 2)
          local _, own = entry(key, tail, n, middle)
          if (own - before) % 2^32 < surplus then
            from = middle + 1
          else
            to = middle
          end
        end
        retry_at = entry(key, tail, n, from)
      end
      retry_at = newest - (low - retry_at) % 2^32 * unit + span
    end
    if enforced == 1 and outcome == 0 then
      outcome = 1
    end
  end

  local rest = ''
  if i < #KEYS then
    outcome, rest = visit(i + 1, outcome)
  end
  if outcome > 0 or decision > 0 or mode == 0 then
    local remaining = requests > used and requests - used or 0
    return outcome,
      pack('>BBdI4dddc0', decision, forgot, retry_at, remaining, full_at, 0, 0, rest)
  end

  -- Where the entry goes, and when it is stamped: the newest slot may be charged again.
  local nth, at = n, ceil((grain > 0 and (floor(now / grain) + 1) * grain or now) / unit) * unit
  if at <= newest then
    if grain > 0 then
      nth, at = n - 1, newest
    else
      at = newest + unit
    end
  end
  -- Once in a while the entries are cut that no plan counts.
  local cut = 0
  if n == 0 then
    oldest = at
  elseif oldest + 2 * horizon <= now or oldest + AGE_MAX * unit <= now then
    cut = first
    if horizon > span then
      cut, before, stamp = seek(key, tail, n, base, low, (newest + horizon - now) / unit, 0)
    end
  elseif n >= ENTRIES_MAX and first * 2 >= n then
    cut = first
  end
  if cut > 0 then
    base, oldest = before, cut < n and newest - (low - stamp) % 2^32 * unit or at
  end
  total = (total + cost) % 2^32
  local keep = (total - base) % 2^32 * token
  keep = keep > horizon and keep or horizon
  local anew = n == 0 or cut > 0
  local extended = anew or now + 1.25 * keep > kept
  if extended then
    kept = now + 2 * keep
  end
  local written = pack('>I4I4dddddI4I4I4c6', at / unit % 2^32, total, now, dropped + cut, at,
    oldest, kept, nth + 1 - cut, first > cut and first - cut or 0, base, form)
  if anew then
    local text = cut < nth and call('GETRANGE', key, cut * 8, nth * 8 - 1) or ''
    call('SET', key, text .. written, 'PX', ceil(keep / 500))
  else
    call('SETRANGE', key, nth * 8, written)
    if extended then
      call('PEXPIRE', key, ceil(keep / 500))
    end
  end
  return outcome,
    pack('>BBdI4dddc0', 0, 0, 0, requests - used - cost, at + span, at, dropped + nth, rest)
end

-- What few calls need is made by those calls, because each function costs some: what restates a
-- window, or what decides a check of another kind.
function rarely(kind)
  local max, min = math.max, math.min

  -- The bytes of a bucket without leases, and those of a lease. One read brings so many leases.
  local BUCKET, LEASE, LEASES_MAX = 38, 20, 24
  -- How long a lease lasts, and when a request is tried again that found no slot, in microseconds.
  local LEASE_LASTS, RETRY_AFTER = 1000000, 1000000
  -- The bytes of the slots of one gateway.
  local SLOTS = 28

  -- Decides the checks after the ith, whose decision is known. Says whether it is charged.
  local function later(i, outcome, enforced, decision)
    if decision > 0 and enforced == 1 and outcome == 0 then
      outcome = 1
    end
    local replies
    outcome, replies = visit(i + 1, outcome)
    return outcome, replies, outcome == 0 and decision == 0 and mode == 1
  end

  -- Of a period with or without what was used in the one before.
  local function is_count(length)
    return length == 18 or length == 30
  end

  local function is_bucket(length)
    local leases = (length - BUCKET) / LEASE
    return leases >= 0 and leases <= LEASES_MAX and floor(leases) == leases
  end

  -- The last entry of a window and the fields of its trailer, or an error if it is none.
  local function trailer(key, tail)
    local length = #tail
    if length >= TRAILER + 8 and sub(tail, -2) == 'w1' then
      local n, first = unpack('>I4I4', tail, length - TRAILER + 41)
      if (length == n * 8 + TRAILER or length == TAIL and n > 64) and first <= n then
        return unpack('>I4I4dddddI4I4I4I4', tail, length - TRAILER - 7)
      end
    end
    error('WEIR unreadable ' .. key, 0)
  end

  -- The entries of a window from the nth on: their stamps and counts.
  local function entries(key, nth, n, unit, low, newest, before)
    local text = nth < n and call('GETRANGE', key, nth * 8, n * 8 - 1) or ''
    local stamps, counts = {}, {}
    for at = 1, #text, 8 do
      local stamp, sum = unpack('>I4I4', text, at)
      stamps[#stamps + 1] = newest - (low - stamp) % 2^32 * unit
      counts[#counts + 1] = (sum - before) % 2^32
      before = sum
    end
    return stamps, counts
  end

  -- What a state of any form knows of its charges, oldest first, and the time of the newest one.
  local function charges(key, tail, horizon)
    local length, tag = #tail, sub(tail, -2)
    if tag == 'b1' and is_bucket(length) then
      local whole, rest, _, at = unpack('>dddd', tail)
      if length > BUCKET then
        -- What is leased counts as spent when the last lease ends.
        at = unpack('>d', tail, length - 13)
      end
      return {at}, {rest > 0 and whole + 1 or whole}, at, tag
    elseif tag == 'c1' and is_count(length) then
      local used, at = unpack('>I4d', tail, length - 17)
      return {at}, {used}, at, tag
    end
    local low, _, charged, _, newest, _, _, n, first, base, unit = trailer(key, tail)
    local age = (newest + horizon - max(time, charged)) / unit
    local from, before = seek(key, tail, n, base, low, age, 0)
    if first < from then
      -- The window counted these at its newest charge: a bucket has refilled a part since.
      from, before = first, base
      if first > 0 then
        _, before = entry(key, tail, n, first - 1)
      end
    end
    local stamps, counts = entries(key, from, n, unit, low, newest, before)
    return stamps, counts, charged, tag
  end

  -- Entries with sums that are larger by `more`.
  local function raised(text, more)
    local parts, whole = {}, #text - #text % 32
    for at = 1, whole, 32 do
      local a, b, c, d, e, f, g, h = unpack('>I4I4I4I4I4I4I4I4', text, at)
      parts[#parts + 1] = pack('>I4I4I4I4I4I4I4I4', a, (b + more) % 2^32, c, (d + more) % 2^32, e,
        (f + more) % 2^32, g, (h + more) % 2^32)
    end
    for at = whole + 1, #text, 8 do
      local stamp, sum = unpack('>I4I4', text, at)
      parts[#parts + 1] = pack('>I4I4', stamp, (sum + more) % 2^32)
    end
    return table.concat(parts)
  end

  -- Writes a window that has another form, or adds what is replayed: of what it has already, only
  -- the entries are read from the oldest that is replayed to the newest. Returns its end, its unit
  -- and its form. While an entry matters, a unit becomes no smaller: gateways claim and replay
  -- stamps in smaller ones, which are then rounded as those of the entries were. It becomes larger
  -- only where the horizon has too many of it: that writes all entries anew.
  local function restate(i, key, tail, form, grain, unit, horizon, token, replayed)
    local stamps, counts, charged, dropped, oldest, first, base, from, before =
      {}, {}, 0, 0, 0, 0, 0, 0, 0
    local added, times, low, n, newest, size, sum, _ = {}, {}
    local behind, latest = 0, 0
    if sub(tail, -2) == 'w1' and sub(tail, -6) ~= form then
      _, _, _, _, newest, _, _, _, _, _, size = trailer(key, tail)
      if newest + horizon > time and (size > unit or horizon <= HORIZON_MAX * size) then
        unit, form = size, sub(tail, -6)
      end
    end
    if replayed then
      for at = replayed, #ARGV[i + 1], 12 do
        local stamp, count = unpack('>dI4', ARGV[i + 1], at)
        stamp = ceil(stamp / unit) * unit
        if stamp + horizon > time and count > 0 then
          if not added[stamp] then
            times[#times + 1] = stamp
          end
          added[stamp] = (added[stamp] or 0) + count
        end
      end
    end
    if tail ~= '' and sub(tail, -6) == form then
      low, sum, charged, dropped, newest, oldest, _, n, first, base = trailer(key, tail)
      if newest + horizon <= time then
        dropped, first, base, n = 0, 0, 0, 0
      elseif #times == 0 then
        return tail, unit, form
      else
        local to = n
        from, before = n, base
        if times[1] <= newest then
          from = seek(key, tail, n, base, low, (newest - times[1]) / unit + 1, n)
        end
        if times[#times] < newest then
          to = seek(key, tail, n, base, low, (newest - times[#times]) / unit, n)
        end
        if from > 0 then
          _, before = entry(key, tail, n, from - 1)
        end
        stamps, counts = entries(key, from, to, unit, low, newest, before)
        behind, latest = n - to, newest
      end
    elseif tail ~= '' then
      local known, sums, tag
      known, sums, charged, tag = charges(key, tail, horizon)
      for nth, stamp in ipairs(known) do
        if tag ~= 'w1' and grain > 0 then
          stamp = (floor(stamp / grain) + 1) * grain
        end
        stamp = ceil(stamp / unit) * unit
        if stamp == stamps[#stamps] then
          counts[#counts] = counts[#counts] + sums[nth]
        elseif stamp + horizon > time and sums[nth] > 0 then
          stamps[#stamps + 1], counts[#counts + 1] = stamp, sums[nth]
        end
      end
    end
    -- Both lists are in order: their union is, too.
    local text, one, other, total, more = {}, 1, 1, before, 0
    while stamps[one] or times[other] do
      local stamp, count = stamps[one], counts[one]
      if not stamp or times[other] and times[other] < stamp then
        stamp, count = times[other], 0
      else
        one = one + 1
      end
      if stamp == times[other] then
        local whole = max(count, added[stamp])
        more, count, other = more + whole - count, whole, other + 1
      end
      total, newest = (total + count) % 2^32, stamp
      text[#text + 1] = pack('>I4I4', stamp / unit % 2^32, total)
      if from + #text == 1 then
        oldest = stamp
      end
    end
    local entries = #text
    if behind > 0 then
      text[entries + 1] = more > 0
        and raised(call('GETRANGE', key, (n - behind) * 8, n * 8 - 1), more) or ''
      newest, total, entries = latest, (sum + more) % 2^32, entries + behind
    end
    if latest > 0 and more == 0 then
      return tail, unit, form
    end
    if from + entries == 0 then
      call('DEL', key)
      return '', unit, form
    end
    -- What is replayed was charged at its stamp, if that is not to come.
    charged = max(charged, min(time, times[#times] or 0))
    local keep = max(horizon, (total - base) % 2^32 * token)
    local written = table.concat(text) .. pack('>dddddI4I4I4', charged, dropped, newest, oldest,
      time + 2 * keep, from + entries, first < from and first or from, base) .. form
    if from == 0 then
      call('SET', key, written, 'PX', ceil(keep / 500))
    else
      call('SETRANGE', key, from * 8, written)
      call('PEXPIRE', key, ceil(keep / 500))
    end
    return call('GETRANGE', key, '-570', '-1'), unit, form
  end

  -- The whole part of a * b / c, and what is left of a * b. Exact if c is below 2^42, b below 2^50
  -- and the whole part below 2^53, although a * b may exceed that.
  local function divide(a, b, c)
    local product = a * b
    if product <= 9007199254740992 then
      local whole = floor(product / c)
      return whole, product - whole * c
    end
    local times = floor(a / c)
    local part, whole, rest, scale = a - times * c, 0, 0, 1099511627776
    while scale >= 1 do
      local next = rest * 1024 + part * (floor(b / scale) % 1024)
      local quotient = floor(next / c)
      whole, rest, scale = whole * 1024 + quotient, next - quotient * c, scale / 1024
    end
    return times * b + whole, rest
  end

  -- Decides and charges a bucket of `burst` tokens of `token` units, of which `refill` come back
  -- each microsecond. Of it the gateway that calls has spent `owed` and `part` of a token alone.
  --
  -- The leases are stored in the order of their ends, each as the gateway, the tokens and the end.
  -- Their tokens are part of the debt, and none of them comes back before its lease is returned or
  -- has ended: what is not spent of a lease is then returned, or counts as spent at its end.
  --
  -- A debt above the burst, as after a boost, stays: of the burst there is what has come back since
  -- the time of the debt, and `counted` is the rest.
  local function bucket(
    i, outcome, key, enforced, cost, burst, count,
    token, refill, owed, part, owed_at, horizon, slowest, form, asks
  )
    local function refilled(whole, rest, micros)
      local tokens, units = divide(micros, refill, token)
      whole, rest = whole - tokens, rest - units
      if rest < 0 then
        whole, rest = whole - 1, rest + token
      end
      if whole < 0 then
        return 0, 0
      end
      return whole, rest
    end
    local function duration(whole, rest)
      local micros, units = divide(token, whole, refill)
      return micros + floor((units + rest + refill - 1) / refill)
    end
    -- The debt after so long, of which `leased` does not come back.
    local function debt_after(micros, whole, rest, leased)
      leased = min(leased, whole)
      whole, rest = refilled(whole, rest, micros)
      if whole < leased then
        return leased, 0
      end
      return whole, rest
    end
    local owners, tokens, ends, leased = {}, {}, {}, 0
    local function store(whole, rest, at)
      local keep = max(horizon, (rest > 0 and whole + 1 or whole) * slowest)
      local text = pack('>dddd', whole, rest, token, at)
      for nth = 1, #ends do
        text = text .. pack('>c8I4d', owners[nth], tokens[nth], ends[nth])
      end
      local lasts = #ends > 0 and LEASE_LASTS / 1000 or 0
      call('SET', key, text .. form, 'PX', ceil(keep / 500) + 1 + lasts)
    end
    local function drop(nth)
      leased = leased - tokens[nth]
      table.remove(owners, nth)
      table.remove(tokens, nth)
      table.remove(ends, nth)
    end

    local tail, whole, rest, at = call('GETRANGE', key, '-570', '-1'), 0, 0, 0
    if is_bucket(#tail) and sub(tail, -6) == form then
      local size
      whole, rest, size, at = unpack('>dddd', tail)
      for from = 33, #tail - 6, LEASE do
        local nth = #ends + 1
        owners[nth], tokens[nth], ends[nth] = unpack('>c8I4d', tail, from)
        leased = leased + tokens[nth]
      end
      if size ~= token then
        local units, more = divide(rest, token, size)
        units = more > 0 and units + 1 or units
        whole, rest = whole + floor(units / token), units % token
      end
    elseif tail ~= '' then
      local times, counts, charged, tag = charges(key, tail, horizon)
      for nth, stamp in ipairs(times) do
        stamp = stamp < charged and stamp or charged
        whole, rest = refilled(whole, rest, at > 0 and stamp > at and stamp - at or 0)
        -- A month's use at once would leave a bucket in debt for hours: it is empty instead.
        whole = whole + (tag == 'c1' and counts[nth] > burst and burst or counts[nth])
        at = max(stamp, at)
      end
      store(whole, rest, at)
    end
    local now, forgot = max(time, at, count > 0 and owed_at or 0), 0
    local counted, part_counted, was_empty = burst, 0, whole >= burst
    local function pass_to(later)
      local micros = at > 0 and later - at or 0
      whole, rest = debt_after(micros, whole, rest, leased)
      if was_empty then
        counted, part_counted = debt_after(micros, counted, part_counted, leased)
      end
      at = later
    end
    while ends[1] and ends[1] <= now do
      pass_to(max(at, ends[1]))
      drop(1)
    end
    pass_to(now)

    local gateway, returned, unspent, wanted, has_lease, settled = '', 0, 0, 0, false, false
    if asks <= #ARGV[i + 1] then
      gateway, returned, unspent, wanted = unpack('>c8dI4I4', ARGV[i + 1], asks)
    end
    for nth = #ends, 1, -1 do
      if owners[nth] == gateway and ends[nth] == returned then
        whole, settled = whole - min(unspent, tokens[nth]), true
        drop(nth)
      elseif owners[nth] == gateway then
        has_lease = true
      end
    end
    if count > 0 then
      owed, part = refilled(owed, part, now - owed_at)
      if owed > whole or owed == whole and part > rest then
        whole, rest, forgot = owed, part, 1
      end
    end

    if not was_empty or whole < counted or whole == counted and rest < part_counted then
      counted, part_counted = whole, rest
      if whole >= burst then
        counted, part_counted = burst, 0
      end
    end
    local is_in_debt = counted < whole or part_counted < rest

    -- When no more than `most` tokens count, if no lease is returned before it ends.
    local function reached(most)
      local whole, rest, leased, from = counted, part_counted, leased, now
      for nth = 1, #ends do
        if leased <= most then
          local at = whole < most and from or from + duration(whole - most, rest)
          if at <= ends[nth] then
            return at
          end
        end
        whole, rest = debt_after(ends[nth] - from, whole, rest, leased)
        leased, from = leased - tokens[nth], ends[nth]
      end
      return whole < most and from or from + duration(whole - most, rest)
    end
    local decision, retry_at, over = 0, 0, counted + cost - burst
    if cost > burst then
      decision = 2
    elseif over > 0 or over == 0 and part_counted > 0 then
      decision, retry_at = 1, reached(burst - cost)
    end
    local replies, charges
    outcome, replies, charges = later(i, outcome, enforced, decision)
    local stamp, granted = 0, 0
    if charges then
      whole, counted, stamp = whole + cost, counted + cost, now
      -- The others find as much as this gateway gets.
      granted = floor((burst - whole - (rest > 0 and 1 or 0)) / 2)
      granted = max(0, min(wanted, granted))
      if has_lease or is_in_debt or #ends == LEASES_MAX then
        granted = 0
      elseif granted > 0 then
        whole, counted, leased = whole + granted, counted + granted, leased + granted
        local nth = #ends + 1
        owners[nth], tokens[nth], ends[nth] = gateway, granted, now + LEASE_LASTS
      end
    end
    if stamp > 0 or forgot > 0 or settled then
      local ago = 0
      if is_in_debt then
        -- What is left stays what has come back since the time of the debt, in whole microseconds.
        local micros, units = divide(token, burst - counted, refill)
        ago = max(0, micros + floor((units - part_counted) / refill))
        micros, units = divide(ago, refill, token)
        whole, rest = whole + micros, rest + units
        counted, part_counted = burst - micros, 0
        if units > 0 then
          counted, part_counted = counted - 1, token - units
        end
        if rest >= token then
          whole, rest = whole + 1, rest - token
        end
        if whole < burst then
          whole, rest = burst, 0
        end
      end
      store(whole, rest, now - ago)
    end
    local left = max(0, burst - counted - (part_counted > 0 and 1 or 0))
    return outcome, pack('>BBdI4dddI4d', decision, forgot, retry_at, left, reached(0), stamp, 0,
      granted, granted > 0 and ends[#ends] or ends[1] or 0) .. replies
  end

  -- Decides and charges a period of a calendar: the one that this server's time is in. `count` of
  -- the period that started at `claimed`, or is to start then, are of the gateway that calls.
  --
  -- Stored is what was used in the period of the newest charge, and before it, in 12 bytes, what was
  -- used in an earlier period. A clock that was set back into the latter has perhaps been ahead
  -- meanwhile, or is behind now: the larger amount counts, and charges add to both.
  local function calendar(
    i, outcome, key, enforced, cost, requests, count,
    previous, starts, stops, last, claimed, horizon, slowest, form
  )
    local function store(used, at, earlier, earlier_at)
      local keep = max(horizon, used * slowest)
      local text = earlier > 0 and pack('>I4d', earlier, earlier_at) or ''
      call('SET', key, text .. pack('>I4dc6', used, at, form), 'PX', ceil(keep / 500) + 1)
    end

    if time < previous or time >= last then
      error('WEIR the clocks differ by a period ' .. key, 0)
    elseif time < starts then
      starts, stops = previous, starts
    elseif time >= stops then
      starts, stops = stops, last
    end
    local tail, used, at, earlier, earlier_at = call('GETRANGE', key, '-570', '-1'), 0, 0, 0, 0
    if is_count(#tail) and sub(tail, -6) == form then
      used, at = unpack('>I4d', tail, #tail - 17)
      if #tail > 18 then
        earlier, earlier_at = unpack('>I4d', tail)
      end
    elseif tail ~= '' then
      local times, counts, charged = charges(key, tail, horizon)
      for nth, stamp in ipairs(times) do
        if stamp >= starts then
          used, at = used + counts[nth], stamp < charged and stamp or charged
        end
      end
      store(used, at, 0, 0)
    end
    if at < starts then
      used, earlier, earlier_at = 0, used, at
    end
    local counted, forgot = used, 0
    if at >= stops and earlier_at >= starts then
      counted = max(used, earlier)
    end
    if claimed >= starts and count > counted then
      counted, forgot = count, 1
    end

    local decision, retry_at = 0, 0
    if cost > requests then
      decision = 2
    elseif counted + cost > requests then
      decision, retry_at = 1, stops
    end
    local replies, charges
    outcome, replies, charges = later(i, outcome, enforced, decision)
    local stamp = 0
    if charges then
      used, counted, stamp = used + cost, counted + cost, starts
    end
    if (stamp > 0 or forgot > 0) and at >= stops then
      store(used, at, counted, time)
    elseif stamp > 0 or forgot > 0 then
      store(counted, max(at, time), earlier, earlier_at)
    end
    return outcome, pack('>BBdI4ddd', decision, forgot, retry_at, max(0, requests - counted),
      counted == 0 and time or stops, stamp, 0) .. replies
  end

  -- Grants slots of `requests` in flight to the gateway that calls. It has `used` of them in use,
  -- `needed` with the request of this call, and wants `wanted` in all. A call that costs nothing
  -- admits no request: it replaces the slots that the gateway has, unless a newer one has come.
  --
  -- The slots of each gateway are stored with the gateway, the number of its newest call, and their
  -- end. What is in use counts even where there is no room for it, but no such slot can be used
  -- again: the reply has those for which there is room.
  local function in_flight(
    i, outcome, key, enforced, cost, requests, used,
    needed, wanted, sequence, _, _, _, _, form, from
  )
    -- What has another type has no slots, as a text of another form.
    local is_text, text = pcall(call, 'GET', key)
    text = is_text and text or ''
    local gateway, rest, others, own, newest = sub(ARGV[i + 1], from, from + 7), '', 0, 0, 0
    if sub(text, -6) == form then
      for at = 1, #text - 6, SLOTS do
        local owner, slots, number, ends = unpack('>c8I4dd', text, at)
        if owner == gateway and ends > time then
          own, newest = slots, number
        elseif ends > time then
          others, rest = others + slots, rest .. sub(text, at, at + SLOTS - 1)
        end
      end
    end

    local room, decision, retry_at = requests - others, 0, 0
    if cost > 0 and needed > room then
      decision, retry_at = 1, time + RETRY_AFTER
    end
    local replies, charges
    outcome, replies, charges = later(i, outcome, enforced, decision)
    local usable, ends = 0, 0
    if charges then
      local kept = (cost > 0 or sequence < newest) and own or 0
      own, ends = max(kept, used, min(wanted, room)), time + LEASE_LASTS
      usable = max(0, min(own, room))
      if own > 0 then
        rest = rest .. pack('>c8I4dd', gateway, own, max(sequence, newest), ends)
      end
      if rest == '' then
        call('DEL', key)
      else
        call('SET', key, rest .. form, 'PX', LEASE_LASTS / 1000 + 1)
      end
    end
    return outcome, pack('>BBdI4dddI4d', decision, 0, retry_at, max(0, room - own), time, 0, 0,
      usable, ends) .. replies
  end

  local decides = ({restate, bucket, calendar, in_flight})[kind]
  return decides or error('WEIR unknown kind of limit', 0)
end

local outcome, replies = visit(1, 0)
return pack('>Bd', outcome, time) .. replies
