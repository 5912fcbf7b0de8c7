//! `reports.json`: faults that other projects had. Named steps first, all checks at the end.

mod checks;
mod steps;
mod upstream;
mod words;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::home::Home;
use super::settings::ReportWords;
use super::wire::{Got, Wire};
use crate::support::redis::Redis;
use crate::support::sidecar::{Plan, Sidecar};
use crate::support::upstream::{Reserved, Upstream};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    #[serde(rename = "id")]
    _id: String,
    #[serde(rename = "title")]
    _title: String,
    #[serde(rename = "source")]
    _source: String,
    #[serde(rename = "fault")]
    _fault: String,
    #[serde(rename = "note")]
    _note: Option<String>,
    config: Config,
    upstream: upstream::Script,
    steps: Vec<steps::Step>,
    expect: Expect,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    proxy: ReportWords,
    harness: Vec<String>,
    #[serde(rename = "level")]
    _level: u8,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expect {
    #[serde(rename = "basis")]
    _basis: String,
    #[serde(rename = "why")]
    _why: String,
    #[serde(rename = "right")]
    _right: String,
    checks: Vec<Map<String, Value>>,
}

/// What the steps and checks of one case share.
struct Stage {
    plan: Plan,
    sidecar: Sidecar,
    upstream: Option<Upstream>,
    running: upstream::Running,
    answers: Arc<Mutex<HashMap<String, Got>>>,
    /// Names of the answers of a `repeat`.
    groups: HashMap<String, Vec<String>>,
    wires: Arc<Mutex<HashMap<String, Wire>>>,
    exited: Option<bool>,
    rss_kb: Vec<u64>,
    redis: Option<Redis>,
    /// Remaining lives of all keys in the store, in milliseconds.
    snapshots: HashMap<String, Vec<i64>>,
}

/// Plays one case and judges it.
pub(super) fn play(case: &Value, home: &Home) -> Result<(), Vec<String>> {
    let case: Case = super::read(case)?;
    let one = |fault: String| vec![fault];
    let mut redis = None;
    for word in &case.config.harness {
        match word.as_str() {
            "proxy-signals" | "ipv6-loopback" | "proxy-rss" => {}
            "redis-control" | "store-inspection" => {
                let server = Redis::start(&[]);
                redis =
                    Some(server.ok_or_else(|| one("redis-server is not installed".to_owned()))?);
            }
            word => return Err(vec![format!("unknown word in harness: {word}")]),
        }
    }
    case.upstream.check().map_err(one)?;
    let ip = if case.upstream.is_ipv6().map_err(one)? {
        IpAddr::V6(Ipv6Addr::LOCALHOST)
    } else {
        IpAddr::V4(Ipv4Addr::LOCALHOST)
    };
    let reserved = Reserved::new(ip);
    let folder = tempfile::tempdir().unwrap();
    let mut settings = case.config.proxy.settings().map_err(one)?;
    settings.store_url = redis.as_ref().map(Redis::url);
    let plan = settings.plan(reserved.addr, home).folder(folder.path());
    let running = upstream::Running::default();
    let initially_down = case.upstream.initially_down;
    let idle = case.upstream.idle_close_ms.map(Duration::from_millis);
    let script = case.upstream.player(running.clone());
    let mut later = Some(move || reserved.start(idle, script));
    let upstream = if initially_down {
        None
    } else {
        later.take().map(|start| start())
    };
    let mut stage = Stage {
        sidecar: plan.start(),
        plan,
        upstream,
        running,
        answers: Arc::default(),
        groups: HashMap::new(),
        wires: Arc::default(),
        exited: None,
        rss_kb: Vec::new(),
        redis,
        snapshots: HashMap::new(),
    };
    let mut threads = steps::Threads::default();
    for step in case.steps {
        if let steps::Step::Upstream(action) = &step {
            if action != "start" {
                return Err(vec![format!("unknown word upstream {action}")]);
            }
            stage.upstream = later.take().map(|start| start());
        } else {
            stage.step(step, &mut threads).map_err(one)?;
        }
    }
    threads.end_all();
    let faults = case.expect.checks.iter();
    let faults = faults.filter_map(|check| stage.check(check).err());
    super::verdict(faults.collect(), &stage.sidecar)
}
