//! The scripts of claims in Redis: the exclusive right of an instance to run an attempt.
//!
//! The value of the key `running:{occurrence}` is `{instance}:{attempt}` while the attempt runs, and `done:{attempt}`
//! afterwards. Each step is one script, because the key may change between a read and a write. Workers in other languages
//! copy the scripts from `docs/protocol`, and a test compares the page with this module. All of them follow one rule: a
//! higher attempt takes over from a lower one, because the server sends it only after it has given the lower one up.

/// Claims an attempt. KEYS: `running:{id}`, `cancel:{id}`. ARGV: the instance, the attempt, the lifetime of the key in
/// milliseconds. Returns the present value (empty if granted), the time to live of the key in milliseconds, and the cancel
/// request (empty if there is none).
pub const CLAIM_SCRIPT: &str = "\
local held, mark = redis.call('GET', KEYS[1]), ARGV[1] .. ':' .. ARGV[2]
local other = held and held ~= mark and tonumber(string.match(held, ':(%d+)$'))
if other and other >= tonumber(ARGV[2]) then return {held, redis.call('PTTL', KEYS[1]), ''} end
redis.call('SET', KEYS[1], mark, 'PX', ARGV[3])
return {'', 0, redis.call('GET', KEYS[2]) or ''}
";

/// Claims an attempt, and reads the time since when Redis holds claims. [`CLAIM_SCRIPT`] has to be inserted for the comment. In the first lease after it, what may be a duplicate is not claimed, because the claim of its holder may be missing
/// until the next renewal. KEYS: those of the script, and `claims_since`. ARGV: those of the script, the lease in milliseconds,
/// and 1 if the message may be a duplicate. Returns the values of the script and the time in milliseconds; a second value above
/// 0 without a holder is the time until the attempt can be claimed.
pub const CLAIM_SINCE_SCRIPT: &str = "\
local function claim()
    -- the script above
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('SET', KEYS[3], string.format('%d', now), 'NX')
local since = redis.call('GET', KEYS[3])
local age, lease = now - (tonumber(since) or 0), tonumber(ARGV[4])
local waits = ARGV[5] == '1' and age >= 0 and age < lease
local answer = waits and {'', lease - age, ''} or claim()
answer[4] = since
return answer
";

/// Renews the claims of runs, and takes over those that are gone or belong to a lower attempt. KEYS: `running:{id}` of each
/// run. ARGV: the lifetime of the keys in milliseconds, then `{instance}:{attempt}` of each run. Returns the position, from 1,
/// and the value of each key that holds this attempt or a higher one for another instance, in turns.
pub const RENEW_SCRIPT: &str = "\
local lost = {}
for i, key in ipairs(KEYS) do
    local mark, held = ARGV[i + 1], redis.call('GET', key)
    local other = held and held ~= mark and tonumber(string.match(held, ':(%d+)$'))
    if other and other >= tonumber(string.match(mark, ':(%d+)$')) then
        lost[#lost + 1], lost[#lost + 2] = i, held
    else
        redis.call('SET', key, mark, 'PX', ARGV[1])
    end
end
return lost
";

/// Marks an attempt as ended, unless another instance has claimed it or a later one. KEYS: `running:{id}`. ARGV: the
/// instance, the attempt, the lifetime of the mark in milliseconds. Returns 1 if it was marked.
pub const DONE_SCRIPT: &str = "\
local held = redis.call('GET', KEYS[1])
local other = held and held ~= ARGV[1] .. ':' .. ARGV[2] and tonumber(string.match(held, ':(%d+)$'))
if other and other >= tonumber(ARGV[2]) then return 0 end
redis.call('SET', KEYS[1], 'done:' .. ARGV[2], 'PX', ARGV[3])
return 1
";

/// Releases a claim. KEYS: `running:{id}`. ARGV: `{instance}:{attempt}`. Returns 1 if it was held.
pub const RELEASE_SCRIPT: &str = "\
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
";

/// The time for which a claim says that its holder is alive, in milliseconds.
pub const CLAIM_LEASE_MS: i64 = 15_000;
/// The time for which a claim is kept after its lease, and a mark after the end, in milliseconds.
pub const CLAIM_RETENTION_MS: i64 = 24 * 3_600 * 1_000;
