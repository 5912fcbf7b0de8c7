//! Every statement, as text.
//!
//! Invariant: each is a transaction of its own on one row (the sweep apart), decided by the
//! server's clock, `clock_timestamp()`, in milliseconds. No statement builds or changes a record,
//! it writes one that came as an argument. What reads like a condition twice over is the point: a
//! row that changed meanwhile is looked at again under its lock, and then does not match.
//!
//! Deliberately absent: decisions. `operations.rs` has them from `transition()`.

/// Now, as a record's end is written.
macro_rules! now {
    () => {
        "(extract(epoch from clock_timestamp()) * 1000)::bigint"
    };
}

/// The rows that say whether it is still the same store: the beginning and the end of a look.
macro_rules! look {
    () => {
        concat!(
            "SELECT pg_is_in_recovery(), mark.owner, mark.attempt, lost.ends_at - ",
            now!(),
            ", current_setting('transaction_read_only') = 'on'"
        )
    };
}
macro_rules! looked {
    () => {
        concat!(
            "
FROM (SELECT) AS one
LEFT JOIN retrysafe_records AS mark ON mark.key = 'mark'
LEFT JOIN retrysafe_records AS lost ON lost.key = 'lost' AND lost.ends_at > ",
            now!()
        )
    };
}

/// The table and what belongs to it. `IF NOT EXISTS`: a second run changes nothing.
pub(super) const CREATE: &str = "\
CREATE TABLE IF NOT EXISTS retrysafe_records (
    key bytea PRIMARY KEY,
    state smallint NOT NULL,
    owner bytea NOT NULL,
    attempt bigint NOT NULL,
    retention bigint NOT NULL,
    ends_at bigint NOT NULL,
    record bytea NOT NULL
);
CREATE INDEX IF NOT EXISTS retrysafe_records_ends_at ON retrysafe_records (ends_at);
COMMENT ON TABLE retrysafe_records IS 'retrysafe schema 1';
";

/// One creator at a time: `IF NOT EXISTS` alone fails where two begin at once.
pub(super) const CREATE_LOCK: &str = "SELECT pg_advisory_xact_lock(7310303518214087217);\n";

/// What the comment of this version's table says.
pub(super) const SCHEMA: &str = "retrysafe schema 1";

/// No row: somebody who is not visible to this statement has written the key just now.
/// $1 key, $2 owner, $3 retention, $4 record.
pub(super) const CLAIM: &str = concat!(
    "WITH new AS (
    INSERT INTO retrysafe_records (key, state, owner, attempt, retention, ends_at, record)
    VALUES ($1, 1, $2, 1, $3, ",
    now!(),
    " + $3, $4) ON CONFLICT (key) DO NOTHING RETURNING 1
)
SELECT NULL::bytea, 0::bigint, 0::bigint FROM new
UNION ALL
SELECT record, ends_at, ",
    now!(),
    " FROM retrysafe_records WHERE key = $1 AND NOT EXISTS (SELECT FROM new)"
);

/// $1 key.
pub(super) const READ: &str = concat!(
    "SELECT record, ends_at, ",
    now!(),
    " FROM retrysafe_records WHERE key = $1"
);

/// Law 1: forward only, and the owner's own. $1 key, $2 owner, $3 rank, $4 state, $5 attempt, $6
/// retention, $7 record.
pub(super) const SETTLE: &str = concat!(
    "UPDATE retrysafe_records SET state = $4, attempt = $5, retention = $6, record = $7, ends_at = ",
    now!(),
    " + $6 WHERE key = $1 AND owner = $2 AND ends_at > ",
    now!(),
    " AND CASE state WHEN 1 THEN 0 WHEN 5 THEN 1 ELSE 2 END < $3"
);

/// $1 key, $2 owner.
pub(super) const RENEW: &str = concat!(
    "UPDATE retrysafe_records SET ends_at = ",
    now!(),
    " + retention WHERE key = $1 AND owner = $2 AND state = 1 AND ends_at > ",
    now!()
);

/// An absent record. $1 key, $2 state, $3 owner, $4 attempt, $5 retention, $6 record.
pub(super) const INSERT: &str = concat!(
    "INSERT INTO retrysafe_records (key, state, owner, attempt, retention, ends_at, record)
    VALUES ($1, $2, $3, $4, $5, ",
    now!(),
    " + $5, $6) ON CONFLICT (key) DO NOTHING"
);

/// A record that is still as it was seen, alive or past its end. The first six as for [`INSERT`],
/// $7 keep the end, then as seen: $8 state, $9 owner, $10 attempt, $11 end, $12 alive.
pub(super) const SWAP: &str = concat!(
    "UPDATE retrysafe_records SET state = $2, owner = $3, attempt = $4, retention = $5, record = $6,
    ends_at = CASE WHEN $7 THEN ends_at ELSE ",
    now!(),
    " + $5 END WHERE key = $1 AND state = $8 AND owner = $9 AND attempt = $10 AND ends_at = $11
    AND (ends_at > ",
    now!(),
    ") = $12"
);

/// The channel of all wake-ups; what is said on it is a record key in hexadecimal.
pub(super) const CHANNEL: &str = "retrysafe_records";

/// $1 what to say. Apart from the settle: a transaction that notifies holds a lock over the whole
/// database until it is on disk, and this one has nothing to write there.
pub(super) const NOTIFY: &str = "SELECT pg_notify('retrysafe_records', $1)";

/// What has ended, passing over what somebody is at. The clock stands still in it, so that the
/// index finds them. $1 how many at most.
pub(super) const SWEEP: &str = "WITH ended AS (
    SELECT key FROM retrysafe_records
    WHERE ends_at <= (extract(epoch from statement_timestamp()) * 1000)::bigint
    ORDER BY ends_at LIMIT $1 FOR UPDATE SKIP LOCKED
)
DELETE FROM retrysafe_records USING ended WHERE retrysafe_records.key = ended.key";

/// Whether it is a standby, the mark, what is left of a told loss, and what the server says of its
/// folder and its log.
pub(super) const LOOK: &str = concat!(
    look!(),
    ",
    (SELECT system_identifier FROM pg_control_system()),
    CASE WHEN NOT pg_is_in_recovery() THEN left(pg_walfile_name(pg_current_wal_lsn()), 8) END,
    CASE WHEN NOT pg_is_in_recovery() THEN (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint END,
    (extract(epoch from pg_postmaster_start_time()) * 1000000)::bigint",
    looked!()
);

/// The same of a server that does not tell of its log.
pub(super) const LOOK_AT_ROWS: &str = concat!(
    look!(),
    ", NULL::bigint, NULL::text, NULL::bigint, NULL::bigint",
    looked!()
);

/// The first mark of a table. $1 owner.
pub(super) const MARK: &str = "\
INSERT INTO retrysafe_records (key, state, owner, attempt, retention, ends_at, record)
VALUES ('mark', 0, $1, 1, 0, 9223372036854775807, '') ON CONFLICT (key) DO NOTHING";

/// The next number.
pub(super) const MARK_ON: &str =
    "UPDATE retrysafe_records SET attempt = attempt + 1 WHERE key = 'mark'";

/// That a loss was noticed. $1 milliseconds of the hold-off.
pub(super) const TELL: &str = concat!(
    "INSERT INTO retrysafe_records (key, state, owner, attempt, retention, ends_at, record)
VALUES ('lost', 0, '', 1, 0, ",
    now!(),
    " + $1, '')
ON CONFLICT (key) DO UPDATE SET ends_at = greatest(retrysafe_records.ends_at, ",
    now!(),
    " + $1)"
);

/// What the server says about itself, and what the role may do.
pub(super) const ASK: &str = "SELECT
    current_setting('server_version_num')::int,
    pg_is_in_recovery(),
    current_setting('transaction_read_only') = 'on',
    current_setting('fsync') = 'on',
    current_setting('full_page_writes') = 'on',
    current_setting('synchronous_commit'),
    current_setting('synchronous_standby_names') <> '',
    current_setting('statement_timeout') <> '0',
    found.persistence,
    found.comment,
    found.writable,
    current_user::text,
    (SELECT bool_and(coalesce(has_function_privilege(to_regprocedure(name), 'EXECUTE'), false))
        FROM unnest(ARRAY['pg_control_system()', 'pg_current_wal_lsn()',
            'pg_current_wal_flush_lsn()', 'pg_walfile_name(pg_lsn)',
            'pg_postmaster_start_time()']) AS name)
FROM (SELECT to_regclass('retrysafe_records') AS oid) AS named
LEFT JOIN LATERAL (
    SELECT relpersistence::text AS persistence,
        obj_description(pg_class.oid, 'pg_class') AS comment,
        has_table_privilege(pg_class.oid, 'SELECT') AND has_table_privilege(pg_class.oid, 'INSERT')
            AND has_table_privilege(pg_class.oid, 'UPDATE')
            AND has_table_privilege(pg_class.oid, 'DELETE') AS writable
    FROM pg_class WHERE pg_class.oid = named.oid
) AS found ON true";
