//! What was executed and what was told, side by side.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use crate::support::PATIENCE;
use crate::support::client::{Client, request};
use crate::support::upstream::{Upstream, reply};
use tokio::time::Instant;

/// Every execution, by key: the answers it gave.
pub(super) struct Ledger {
    upstream: Upstream,
    entries: Arc<Mutex<BTreeMap<String, Vec<String>>>>,
}

impl Ledger {
    /// An upstream that writes down what it does, before it answers.
    pub(super) fn start() -> Self {
        let entries: Arc<Mutex<BTreeMap<String, Vec<String>>>> = Arc::default();
        let writing = entries.clone();
        let upstream = Upstream::start(move |request, number| {
            let key = request.header("idempotency-key").unwrap().to_owned();
            let answer = format!("{key} was execution {number}");
            let mut entries = writing.lock().unwrap();
            entries.entry(key).or_default().push(answer.clone());
            drop(entries);
            vec![reply(201, &[], &answer)]
        });
        Self { upstream, entries }
    }

    pub(super) fn addr(&self) -> SocketAddr {
        self.upstream.addr
    }
}

/// What clients were told of one key.
#[derive(Debug, Clone, Default)]
struct Told {
    /// The bodies of 201.
    answers: Vec<String>,
    /// Statuses of everything else.
    others: BTreeMap<u16, usize>,
    /// Connections that broke.
    broken: usize,
    /// The last word, with the faults gone: status and outcome.
    at_the_end: Option<(u16, String)>,
}

#[derive(Debug)]
pub(super) struct Account {
    told: Mutex<Vec<Told>>,
    executed: Mutex<BTreeMap<String, Vec<String>>>,
}

fn name(key: usize) -> String {
    format!("key-{key}")
}

/// Status, body, and the outcome of a problem; `None`: the connection broke.
fn paid(addr: SocketAddr, key: usize) -> Option<(u16, String, String)> {
    let name = name(key);
    let mut client = Client::connect(addr);
    let fields = [("Idempotency-Key", name.as_str()), ("Connection", "close")];
    client.try_write(&request("POST", "/pay", &fields, "x"));
    let answer = client.answer()?;
    let outcome = match answer.status {
        201 => String::new(),
        _ => answer.json()["outcome"]
            .as_str()
            .unwrap_or_default()
            .to_owned(),
    };
    Some((answer.status, answer.text(), outcome))
}

impl Account {
    pub(super) fn new(keys: usize) -> Self {
        Self {
            told: Mutex::new(vec![Told::default(); keys]),
            executed: Mutex::default(),
        }
    }

    /// One request, whatever becomes of it.
    pub(super) fn pay(&self, addr: SocketAddr, key: usize) {
        let paid = paid(addr, key);
        let told = &mut self.told.lock().unwrap()[key];
        match paid {
            Some((201, body, _)) => told.answers.push(body),
            Some((status, ..)) => *told.others.entry(status).or_default() += 1,
            None => told.broken += 1,
        }
    }

    /// With everything well again each key has a last word, the same at every replica.
    pub(super) fn ask_again(&self, addrs: &[SocketAddr]) {
        let keys = self.told.lock().unwrap().len();
        for key in 0..keys {
            let mut words = Vec::new();
            for addr in addrs {
                let (status, body, outcome) = last_word(*addr, key);
                if status == 201 {
                    self.told.lock().unwrap()[key].answers.push(body);
                }
                words.push((status, outcome));
            }
            words.dedup();
            assert_eq!(words.len(), 1, "{}: {words:?}", name(key));
            self.told.lock().unwrap()[key].at_the_end = words.pop();
        }
    }

    pub(super) fn settle(&self, ledger: &Ledger) {
        *self.executed.lock().unwrap() = ledger.entries.lock().unwrap().clone();
    }

    pub(super) fn print(&self, what: &str) {
        let told = self.told.lock().unwrap();
        let executed = self.executed.lock().unwrap();
        let mut others: BTreeMap<u16, usize> = BTreeMap::new();
        for (status, count) in told.iter().flat_map(|told| &told.others) {
            *others.entry(*status).or_default() += count;
        }
        let answers: usize = told.iter().map(|told| told.answers.len()).sum();
        let twice = executed
            .values()
            .filter(|answers| answers.len() > 1)
            .count();
        let unknown = told
            .iter()
            .filter(|told| told.at_the_end.as_ref().is_some_and(|end| end.0 != 201));
        println!(
            "{what}: {} keys, {} executions, {twice} keys twice; 201 {answers} times, others {others:?}, {} broke; {} keys end unknown",
            told.len(),
            executed.values().map(Vec::len).sum::<usize>(),
            told.iter().map(|told| told.broken).sum::<usize>(),
            unknown.count(),
        );
    }

    /// At most one execution of any key.
    pub(super) fn nothing_twice(&self) {
        let executed = self.executed.lock().unwrap();
        for (key, answers) in executed.iter() {
            assert_eq!(answers.len(), 1, "{key}: {answers:?}");
        }
        assert!(executed.len() > self.told.lock().unwrap().len() / 2);
    }

    /// Whoever was told an answer was told the one that the ledger has.
    pub(super) fn nothing_changed(&self) {
        let executed = self.executed.lock().unwrap();
        for (key, told) in self.told.lock().unwrap().iter().enumerate() {
            for answer in &told.answers {
                let ledger = executed.get(&name(key)).and_then(|answers| answers.first());
                assert_eq!(Some(answer), ledger, "{}", name(key));
            }
        }
    }

    /// A key ends with its answer, or with an unknown outcome if it was executed: never held for
    /// nothing.
    pub(super) fn nothing_stuck(&self) {
        let executed = self.executed.lock().unwrap();
        for (key, told) in self.told.lock().unwrap().iter().enumerate() {
            let (status, outcome) = told.at_the_end.as_ref().unwrap();
            let was_executed = executed.contains_key(&name(key));
            let is_well = *status == 201 || (outcome == "unknown" && was_executed);
            assert!(is_well, "{}: {told:?}, executed: {was_executed}", name(key));
        }
    }
}

/// 409 and 503 are no last words: they say to come again.
fn last_word(addr: SocketAddr, key: usize) -> (u16, String, String) {
    let until = Instant::now() + PATIENCE;
    loop {
        let word = paid(addr, key);
        match word {
            Some((409 | 503, ..)) | None if Instant::now() < until => {}
            Some(word) => return word,
            None => panic!("{}: no answer", name(key)),
        }
    }
}

/// The checker is checked: what must be found is found.
mod tests {
    use super::*;

    fn account(executed: &[&str], answers: &[&str], end: (u16, &str)) -> Account {
        let account = Account::new(1);
        let texts = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        account.told.lock().unwrap()[0] = Told {
            answers: texts(answers),
            at_the_end: Some((end.0, end.1.to_owned())),
            ..Told::default()
        };
        if !executed.is_empty() {
            let entries = BTreeMap::from([(name(0), texts(executed))]);
            *account.executed.lock().unwrap() = entries;
        }
        account
    }

    fn finds(check: impl FnOnce() + std::panic::UnwindSafe) -> bool {
        std::panic::catch_unwind(check).is_err()
    }

    #[test]
    fn a_second_execution_another_answer_and_a_key_held_for_nothing_are_found() {
        let well = account(&["a"], &["a", "a"], (201, ""));
        well.nothing_twice();
        well.nothing_changed();
        well.nothing_stuck();
        account(&["a"], &[], (502, "unknown")).nothing_stuck();
        let twice = account(&["a", "b"], &["a"], (201, ""));
        assert!(finds(move || twice.nothing_twice()));
        let changed = account(&["a"], &["a", "b"], (201, ""));
        assert!(finds(move || changed.nothing_changed()));
        let invented = account(&[], &["a"], (201, ""));
        assert!(finds(move || invented.nothing_changed()));
        let held_for_nothing = account(&[], &[], (502, "unknown"));
        assert!(finds(move || held_for_nothing.nothing_stuck()));
    }
}
