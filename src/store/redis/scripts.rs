//! The Lua scripts: what no single command of Redis 6.2 to 8 can decide.
//!
//! Invariant: a script touches `KEYS[1]` alone and reads only the record's fixed head
//! (`idempotency/codec`); it never builds or changes a value, it writes one that came as an
//! argument. What a script decides is what [`transition()`](crate::idempotency::transition())
//! decides; the store contract's tests hold them together.
//!
//! From 7.0 on a script says beforehand whether it may run when memory is full: finished work may,
//! a new lease may not. Redis 6.2 knows no such line.
//!
//! Deliberately absent: the age of a lease. Scripts that depend on it get it as "nobody has renewed
//! since", which `swap` checks.

use redis::Script as Hashed;

/// The head, or an answer: the record is absent, or there is something that is no record.
const HEAD: &str = "
local head = redis.call('GETRANGE', KEYS[1], 0, 53)
local absent = head == '' and redis.call('EXISTS', KEYS[1]) == 0
local version = string.byte(head, 1)
if not absent and (#head < 54 or version < 1 or version > 2) then return -2 end
";

const READ: &str = "
local value = redis.call('GET', KEYS[1])
if not value then return false end
return {value, redis.call('PTTL', KEYS[1])}
";

/// What `SET NX GET PX` does where that does not exist. ARGV: value, milliseconds.
const CLAIM: &str = "
local value = redis.call('GET', KEYS[1])
if value then return value end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return false
";

/// ARGV: owner, rank of the new state, value, milliseconds, the same two for an absent record (an
/// empty value: no difference), and whether something must be written in any case (1 or 0), because
/// replicas will be asked.
const SETTLE: &str = "
if absent then
  if ARGV[5] == '' then
    redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4])
  else
    redis.call('SET', KEYS[1], ARGV[5], 'PX', ARGV[6])
  end
  return 1
end
if string.sub(head, 3, 18) ~= ARGV[1] then return -1 end
local state = string.byte(head, 2)
local rank = 2
if state == 1 then rank = 0 elseif state == 5 then rank = 1 end
if rank < tonumber(ARGV[2]) then
  redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4])
elseif ARGV[7] == '1' then
  local left = redis.call('PTTL', KEYS[1])
  if left > 0 then redis.call('PEXPIRE', KEYS[1], left) end
end
return 0
";

/// ARGV: owner, value, milliseconds, whether dispatched (1 or 0).
const RENEW: &str = "
if absent then
  if ARGV[4] ~= '1' then return -1 end
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
  return 1
end
if string.sub(head, 3, 18) ~= ARGV[1] then return -1 end
if string.byte(head, 2) == 1 then
  local retention = string.format('%.0f', struct.unpack('>I8', head, 31))
  redis.call('PEXPIRE', KEYS[1], retention)
end
return 0
";

/// ARGV: state, owner and attempt as seen (empty: absent), the milliseconds it had left then, the
/// new value, its milliseconds (0: as they are).
const SWAP: &str = "
if ARGV[1] == '' then
  if not absent then return 0 end
else
  if absent or string.sub(head, 2, 22) ~= ARGV[1] then return 0 end
  if redis.call('PTTL', KEYS[1]) > tonumber(ARGV[2]) then return 0 end
end
if ARGV[4] == '0' then
  redis.call('SET', KEYS[1], ARGV[3], 'KEEPTTL')
else
  redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4])
end
return 1
";

/// A write that changes nothing: the end stays where it is.
const TOUCH: &str = "
local left = redis.call('PTTL', KEYS[1])
if left > 0 then redis.call('PEXPIRE', KEYS[1], left) end
return 0
";

/// Answers of the scripts.
pub(super) mod answer {
    /// Done, or done before.
    pub(in crate::store::redis) const STORED: i64 = 0;
    /// Written although it was absent; for `swap`: written.
    pub(in crate::store::redis) const WRITTEN: i64 = 1;
    /// Another owner's, or gone.
    pub(in crate::store::redis) const LOST: i64 = -1;
    /// There is something that is no record of this version.
    pub(in crate::store::redis) const UNREADABLE: i64 = -2;
}

/// One script in the form a server understands.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) text: String,
    hashed: Hashed,
}

impl Script {
    fn new(line: &str, parts: &[&str]) -> Self {
        let text = format!("{line}{}", parts.concat());
        let hashed = Hashed::new(&text);
        Self { text, hashed }
    }

    /// What EVALSHA takes.
    pub(super) fn sha(&self) -> &str {
        self.hashed.get_hash()
    }
}

/// All of them, for one kind of server.
#[derive(Debug)]
pub(super) struct Scripts {
    pub(super) read: Script,
    pub(super) claim: Script,
    pub(super) settle: Script,
    pub(super) renew: Script,
    pub(super) touch: Script,
    /// A new lease: refused when memory is full.
    pub(super) take: Script,
    /// Anything else that replaces a record as seen.
    pub(super) replace: Script,
}

impl Scripts {
    /// For Redis 7.0 and later (`flags`), or for 6.2, which takes the first line for an error.
    pub(super) fn new(flags: bool) -> Self {
        let line = |line: &'static str| if flags { line } else { "" };
        let plain = line("#!lua\n");
        let allow_oom = line("#!lua flags=allow-oom\n");
        Self {
            read: Script::new(line("#!lua flags=no-writes\n"), &[READ]),
            claim: Script::new(plain, &[CLAIM]),
            settle: Script::new(allow_oom, &[HEAD, SETTLE]),
            renew: Script::new(allow_oom, &[HEAD, RENEW]),
            touch: Script::new(allow_oom, &[TOUCH]),
            take: Script::new(plain, &[HEAD, SWAP]),
            replace: Script::new(allow_oom, &[HEAD, SWAP]),
        }
    }
}
